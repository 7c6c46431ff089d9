"""`python -m runner` as a process, in a folder of its own, with its own database."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runner.runs.run_directory import RunDirectory, RunRecord
from tests.support.forked import ROOT, Forks, environment

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from .cases import MakeCase

TINY_CONF = ROOT / "tests" / "samples" / "conf"


def command_line(*arguments: str) -> list[str]:
    """Returns the command, which knows the tiny experiments too."""
    return [sys.executable, "-m", "runner", "--config-dir", str(TINY_CONF), *arguments]


@dataclass
class Command:
    """Runs `python -m runner` in `folder`.

    Its processes are forked; where `forks` is None, they are interpreters of their own.
    """

    folder: Path
    forks: Forks | None
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts a process in a process group of its own; its output goes to pipes."""
        start = subprocess.Popen if self.forks is None else self.forks.start
        process = start(
            command_line(*arguments),
            cwd=self.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a process to its end."""
        return finish(self.start(*arguments))

    def directory(self, run: str) -> RunDirectory:
        """Returns the directory of a run such as `tiny/001`."""
        return RunDirectory(self.folder / "runs" / run)

    def record(self, run: str) -> RunRecord:
        """Returns a run's record."""
        return self.directory(run).load_record()

    def steps(self, run: str) -> list[int]:
        """Returns the steps of a run's newest checkpoints."""
        files = self.directory(run).checkpoints.glob("*.index")
        return sorted(int(file.stem.rpartition("-")[2]) for file in files)

    def client(self) -> MlflowClient:
        """Returns a client of the folder's database."""
        from mlflow import MlflowClient

        return MlflowClient(f"sqlite:///{self.folder / 'mlflow.db'}")

    def tracked(self, experiment: str) -> list[Run]:
        """Returns the experiment's runs in MLflow, oldest first."""
        client = self.client()
        found = client.get_experiment_by_name(experiment)
        if found is None:
            return []
        return list(client.search_runs([found.experiment_id], order_by=["start_time ASC"]))

    def sweep(self, experiment: str) -> tuple[Run, dict[str, Run]]:
        """Returns the run of an experiment's sweep, and those of its trials by name."""
        runs = {run.info.run_name: run for run in self.tracked(experiment)}
        parent = runs.pop(f"{experiment} sweep")
        assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} <= {
            parent.info.run_id
        }
        return parent, runs

    def statuses(self, experiment: str) -> list[str]:
        """Returns the status of each of them."""
        return [run.info.status for run in self.tracked(experiment)]


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Waits for a process and returns its exit code and output."""
    output, errors = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def summary(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """Returns the cells of each trial in the summary of a sweep."""
    _, _, table = done.stdout.partition("\ntrial  ")
    rows = [line.split() for line in table.splitlines()]
    return [row for row in rows if row and row[0].isdecimal()]


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Returns the lines on standard error, without those of TensorFlow's C++ libraries."""
    return [line for line in done.stderr.splitlines() if not re.match(r"[IWEF]\d{4} ", line)]


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    """Waits until the living process has made a file."""
    while not file.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


CONTROL = re.compile(r"\x1b\[\??[0-9;]*[A-Za-z]")
"""What moves the cursor, colours or clears."""


def in_terminal(
    forks: Forks, command: Sequence[str], folder: Path, env: Mapping[str, str], *, columns: int
) -> subprocess.Popen[str]:
    """Starts a fork in a terminal of so many columns, which its `stdout` reads."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {name: value for name, value in env.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = forks.start(command, cwd=folder, env=env, start_new_session=True, **streams)
    os.close(theirs)
    process.stdout = open(ours, errors="replace")  # noqa: SIM115 - Popen's attribute
    return process


def output_of(process: subprocess.Popen[str]) -> str:
    """Returns all that a process writes into its terminal, until that ends."""
    assert process.stdout is not None
    written = []
    with process.stdout, suppress(OSError):  # It ends with the last process that has it open.
        while read := os.read(process.stdout.fileno(), 65536):
            written.append(read)
    return b"".join(written).decode(errors="replace")


def _end(processes: Iterable[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _clean(folder: Path, database: Path) -> Path:
    """Returns the folder, made if it is not there, with an empty database."""
    folder.mkdir(exist_ok=True)
    shutil.copy(database, folder / "mlflow.db")
    return folder


@pytest.fixture(scope="module")
def make_command(
    migrated_database: Path, tmp_path_factory: pytest.TempPathFactory, forks: Forks
) -> Iterator[Callable[..., Command]]:
    """Makes commands, each in a folder of its own; ends what they leave running."""
    made: list[Command] = []

    def make(fresh: bool = False) -> Command:
        folder = _clean(tmp_path_factory.mktemp("my experiments"), migrated_database)
        made.append(Command(folder, None if fresh else forks))
        return made[-1]

    yield make
    for command in made:
        _end(command.processes)


@pytest.fixture
def command(make_command: Callable[..., Command]) -> Command:
    """A command in a fresh folder; its processes are forks."""
    return make_command()


@pytest.fixture
def fresh_command(make_command: Callable[..., Command]) -> Command:
    """A command in a fresh folder; its processes are interpreters of their own."""
    return make_command(fresh=True)


@pytest.fixture
def make_case(forks: Forks, tmp_path: Path, migrated_database: Path) -> Iterator[MakeCase]:
    """Makes commands, each in a folder of its own with its own database."""
    from .cases import Case

    made: list[Case] = []

    def make(name: str, *arguments: str) -> Case:
        folder = _clean(tmp_path / name, migrated_database)
        made.append(Case(folder, forks, arguments=arguments))
        return made[-1]

    yield make
    for case in made:
        _end(case.processes)
