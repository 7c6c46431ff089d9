from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runner.system.atomic_files import (
    relative_path,
    remove_leftovers,
    resolve_moved,
    write_text,
)


def test_a_path_is_found_again_where_all_was_moved_or_copied(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    run = str(old / "runs" / "001")
    way = relative_path(run, old / "sweeps")
    assert way == "../runs/001"
    assert resolve_moved(run, way, new / "sweeps") == run
    (new / "runs" / "001").mkdir(parents=True)
    assert resolve_moved(run, way, new / "sweeps") == str(new / "runs" / "001")


def test_what_was_kept_without_a_way_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert relative_path(None, tmp_path) is None
    assert resolve_moved("/a", None, tmp_path) == "/a"
    assert resolve_moved(None, None, tmp_path) is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    way = relative_path("run", tmp_path / "sweep")
    assert resolve_moved("run", way, Path("sweep")) == str(tmp_path / "run")


@pytest.mark.parametrize("lasting", [True, False])
def test_only_what_is_to_last_waits_for_the_disk(
    lasting: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(os, "fsync", waited.append)
    write_text(tmp_path / "plan.txt", "a plan", lasting=lasting)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("plan.txt", "a plan")
    ]
    assert bool(waited) == lasting


WRITING = """
import sys
from pathlib import Path
from runner.system.atomic_files import write_text
for number in range(200):
    write_text(Path(sys.argv[1]), f"{number}" * 1000, lasting=False)
"""


def test_two_processes_may_write_one_file(tmp_path: Path) -> None:
    """As the processes of a search do at its end."""
    command = [sys.executable, "-c", WRITING, str(tmp_path / "file")]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "199" * 1000


KILLED = """
import os, signal, sys
from pathlib import Path
from runner.system import atomic_files
from runner.system.atomic_files import unfinished, write_text

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

with unfinished(Path(sys.argv[1]) / "export") as folder:
    folder.mkdir()
    (folder / "weights").write_text("half")
    os.fsync = kill
    write_text(Path(sys.argv[1]) / "run.json", "half")
"""


def test_what_a_killed_process_left_is_removed_and_what_others_write_stays(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=60)
    left = sorted(path.name.partition("-")[0] for path in tmp_path.iterdir())
    assert [name.partition(f".{socket.gethostname().partition('-')[0]}")[0] for name in left] == [
        ".unfinished",
        "run.json",
    ]
    living = f"{socket.gethostname()}-{os.getpid()}"
    others = {"run.json.elsewhere-1.tmp", f"run.json.{living}.tmp", "my-1.tmp", "run.json"}
    for name in others:
        (tmp_path / name).write_text("x")
    (tmp_path / f".unfinished-{living}-abc").mkdir()
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*others, f".unfinished-{living}-abc"}
