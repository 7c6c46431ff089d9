"""Records runs with the code of this checkout: `python -m tests.data.old_runs.make NAME`.

Makes `NAME.tar.xz` beside this file, NAME being the version or the commit, for
`tests/integration/test_old_runs.py`. To be done before a change of what is written to the folders
of runs and sweeps. The archives of earlier versions stay, and so do the names and arguments in
`experiment.py`, by which their runs are found.

An archive is a folder as somebody leaves it, with `runs`, `mlflow.db`, MLflow's artifacts and the
configs in `conf`; the commands are added as `commands.json`. The names of the host and the user are
made up, tracebacks name no files, the owners of killed runs are of an unknown boot of their
machine, and the databases are compacted. All else is as it was written.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import psutil

from tests.data.old_runs.experiment import FAULTS, WAITING
from tests.data.old_runs.unpack import FOLDER, RECORDED
from tests.tiny.runs import wait_for

ROOT = FOLDER.parents[2]
# In place of what would be recorded of this machine.
USER, BOOT = "someone", "00000000-0000-0000-0000-000000000000"
# When all files were written: the owner of a run might live where that was a moment ago.
LONG_AGO = 1_500_000_000
ANONYMOUS = """
import socket, sys
socket.gethostname = lambda: "somewhere"
sys.tracebacklimit = 0  # Tracebacks are recorded, and are full of paths.
"""

POINTS = ("+experiment=points",)
COMMANDS = {
    "points": POINTS,
    "warm": ("+experiment=warm_points",),
    "killed": (*POINTS, "name=killed"),
    "terminated": (*POINTS, "name=terminated"),
    "undelivered": (*POINTS, "name=undelivered"),
    # The third trial is like the run of `points`.
    "grid": ("-m", *POINTS, "name=grid", "optimizer.learning_rate=0.125,0.25,0.0625,0.03125"),
    "search": (
        "-m",
        *POINTS,
        "name=search",
        "hydra/sweeper=optuna",
        "hydra/sweeper/sampler=random",
        "hydra.sweeper.sampler.seed=9",
        "hydra/sweeper/pruner=median",
        "hydra.sweeper.pruner.n_startup_trials=1",
        "hydra.sweeper.n_trials=5",
        "optimizer.learning_rate=tag(log,interval(1e-3,1e-1))",
        "optimizer.use_nesterov=true,false",
        "+model.units=range(2,5)",
    ),
}


class Recorder:
    """Runs commands in `RECORDED` as interpreters of their own."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def run(self, *arguments: str) -> None:
        """Runs one to its end, without a fault."""
        assert self.start("", *arguments).wait() == 0

    def start(self, faults: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts one, with words for the file `faults`."""
        (RECORDED / FAULTS).write_text("\n".join(faults.split()))
        # By a name without a path, because the command is recorded.
        command = ["python", "-m", "runner", "--config-dir", "conf", *arguments]
        return subprocess.Popen(command, cwd=RECORDED, env=self._environment)

    def waiting(self, faults: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts one and returns it once it waits."""
        process = self.start(faults, *arguments)
        wait_for((RECORDED / WAITING).exists)
        return process

    def go_on(self) -> None:
        """Lets it go on."""
        (RECORDED / WAITING).unlink()

    def killed(self, faults: str, *arguments: str) -> None:
        """Starts one and kills it when it waits."""
        process = self.waiting(faults, *arguments)
        process.kill()
        process.wait()
        self.go_on()
        wait_for(lambda: not _processes())  # The follower delivers the rest.


def record(recorder: Recorder) -> None:
    """Leaves all runs in `RECORDED`."""
    recorder.run(*COMMANDS["points"])
    recorder.run(*COMMANDS["points"], "mode=evaluate")
    recorder.run(*COMMANDS["warm"])

    recorder.killed("wait", *COMMANDS["killed"])

    process = recorder.waiting("wait", *COMMANDS["terminated"])
    process.send_signal(signal.SIGTERM)
    time.sleep(1.0)  # The signal is handled while the run waits.
    recorder.go_on()
    assert process.wait() == 128 + signal.SIGTERM

    process = recorder.waiting("wait", *COMMANDS["undelivered"])
    journal = RECORDED / "runs/undelivered/001/tracking"
    (position,) = journal.glob("sqlite-*/position.json")
    size = (journal / "journal/0001.journal").stat().st_size
    wait_for(lambda: json.loads(position.read_text())["offset"] == size)
    (follower,) = [each for each in _processes() if each.pid != process.pid]
    follower.kill()
    recorder.go_on()
    assert process.wait() == 0

    recorder.killed("go fail wait", *COMMANDS["grid"])
    assert _trials("001") == ["FINISHED", "FAILED", "RUNNING", "WAITING"]
    recorder.killed("go fail wait", *COMMANDS["search"])
    # A trial that is pruned does not get as far as to the fault.
    assert _trials("002") == ["FINISHED", "FAILED", "PRUNED", "RUNNING"]


def _trials(sweep: str) -> list[str]:
    files = sorted(RECORDED.glob(f"runs/sweeps/{sweep}/trials/*.json"))
    return [json.loads(each.read_text())["status"] for each in files]


def _processes() -> list[psutil.Process]:
    """Returns those that work in `RECORDED`."""
    found = []
    for each in psutil.process_iter():
        try:
            if each.cwd() == str(RECORDED) and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
        except psutil.Error:
            continue  # It has ended, or is another user's.
    return found


def write_out() -> None:
    """Makes the files ready to be packed."""
    (RECORDED / FAULTS).unlink()
    for database in (*RECORDED.glob("*.db"), *RECORDED.glob("runs/sweeps/*/*.db")):
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("VACUUM")
    for file in RECORDED.rglob("owner.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "boot": BOOT}, indent=2))
    (RECORDED / "commands.json").write_text(json.dumps(COMMANDS, indent=2))
    foreign = [str(each).encode() for each in (ROOT, Path.home(), Path(sys.prefix))]
    for file in filter(Path.is_file, RECORDED.rglob("*")):
        assert not any(each in file.read_bytes() for each in foreign), file


def pack(archive: Path) -> None:
    """Packs `RECORDED`; the files' owner is nobody in particular."""

    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = LONG_AGO
        return entry

    with tarfile.open(archive, "w:xz", preset=9) as tar:
        tar.add(RECORDED, ".", filter=anonymous)


def main() -> None:
    """Records all and packs it."""
    archive = FOLDER / f"{sys.argv[1]}.tar.xz"
    assert RECORDED.resolve() == RECORDED, "a link on the way would be recorded too"
    RECORDED.mkdir()
    try:
        shutil.copytree(FOLDER / "conf", RECORDED / "conf")
        with tempfile.TemporaryDirectory() as names:
            (Path(names) / "sitecustomize.py").write_text(ANONYMOUS)
            programs = Path(sys.executable).parent
            changes = {
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": f"{names}{os.pathsep}{ROOT}",
                "LOGNAME": USER,
                "MLFLOW_DISABLE_TELEMETRY": "true",
            }
            record(Recorder({**os.environ, **changes}))
        write_out()
        pack(archive)
    finally:
        shutil.rmtree(RECORDED)
    print(f"{archive}: {archive.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
