from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock

from runner.errors import RunDirectoryError
from runner.runs.run_directory import RunDirectory, RunRecord
from runner.system.locks import OwnerFile, is_held, this_process
from runner.system.status import Status

# Another host's process; nothing of this test runs there.
ELSEWHERE = {"host": "elsewhere", "boot": "another", "pid": 7, "since": "2026-01-01T00:00:00"}


def test_a_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    with FileLock(path):
        assert is_held(path)
    assert not is_held(path)
    assert this_process() == f"{socket.gethostname()}:{os.getpid()}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "owner.json"
    path.write_text(json.dumps(ELSEWHERE))
    return path


def test_an_owner_is_named_as_long_as_it_owns(tmp_path: Path) -> None:
    owner = OwnerFile(tmp_path / "owner.json")
    owner.take()
    found = OwnerFile(tmp_path / "owner.json").read()
    assert found is not None
    assert str(found).startswith(f"process {os.getpid()} on {socket.gethostname()} since 20")
    assert owner.elsewhere(wait=True) is None
    owner.release()
    assert list(tmp_path.iterdir()) == []


def test_it_is_touched_all_the_time(tmp_path: Path) -> None:
    owner = OwnerFile(tmp_path / "owner.json", beat=0.02)
    owner.take()
    os.utime(tmp_path / "owner.json", (0, 0))
    deadline = time.monotonic() + 10.0
    while (tmp_path / "owner.json").stat().st_mtime == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    owner.release()


def test_one_on_another_host_that_goes_on_touching_lives(file: Path) -> None:
    stop = threading.Event()

    def touch() -> None:
        while not stop.wait(0.02):
            os.utime(file)

    thread = threading.Thread(target=touch)
    thread.start()
    found = OwnerFile(file, beat=0.2).elsewhere(wait=True)
    stop.set()
    thread.join()
    assert found is not None
    assert found.host == "elsewhere"


def test_one_that_has_stopped_touching_is_dead(file: Path) -> None:
    assert OwnerFile(file, beat=0.05).elsewhere(wait=False) is not None
    assert OwnerFile(file, beat=0.05).elsewhere(wait=True) is None
    # Long dead: that takes no waiting.
    os.utime(file, (0, 0))
    assert OwnerFile(file, beat=1000.0).elsewhere(wait=True) is None


def test_a_clock_that_was_set_back_makes_no_dead_owner_live(file: Path) -> None:
    os.utime(file, (time.time() + 3600, time.time() + 3600))
    assert OwnerFile(file, beat=0.05).elsewhere(wait=True) is None


@pytest.mark.parametrize("content", ["", "{}", "[1]"])
def test_a_file_that_says_nothing_names_nobody(tmp_path: Path, content: str) -> None:
    (tmp_path / "owner.json").write_text(content)
    assert OwnerFile(tmp_path / "owner.json").elsewhere(wait=True) is None


def test_a_lock_that_does_not_reach_the_owners_host_is_not_enough(file: Path) -> None:
    run = RunDirectory(file.parent)
    run.write(RunRecord("tiny", "abc", Status.RUNNING, {}))
    stop = threading.Event()

    def touch() -> None:
        while not stop.wait(0.02):
            os.utime(file)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        with pytest.raises(RunDirectoryError, match="owns it: process 7 on elsewhere since 2026"):
            run.claim()
        # Nor is the run taken for killed.
        assert run.settle() is None
    finally:
        stop.set()
        thread.join()
