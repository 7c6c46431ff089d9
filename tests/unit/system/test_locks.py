"""Locks end with their process, and other hosts see by its heartbeat that an owner lives."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from runner.errors import RunDirectoryError
from runner.runs.run_directory import RunDirectory, RunRecord
from runner.system import locks
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


def test_an_owner_is_named_and_its_file_touched_as_long_as_it_owns(file: Path) -> None:
    threads = set(threading.enumerate())
    owner = OwnerFile(file, beat=0.01)
    owner.take()
    (beating,) = set(threading.enumerate()) - threads
    assert str(owner.read()).startswith(f"process {os.getpid()} on {socket.gethostname()} since 20")
    assert owner.elsewhere(wait=True) is None
    os.utime(file, (0, 0))
    deadline = time.monotonic() + 30
    while not file.stat().st_mtime:
        assert time.monotonic() < deadline
    owner.release()
    assert list(file.parent.iterdir()) == []
    beating.join(30)
    assert not beating.is_alive()


@pytest.mark.parametrize("beats", [True, False])
def test_one_on_another_host_lives_if_it_continues_to_touch(file: Path, beats: bool) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if beats and sum(slept) > 1.0:
            os.utime(file)

    before = time.time() - 2.0
    os.utime(file, (before, before))
    owner = OwnerFile(file, beat=1.0, sleep=sleep)
    assert owner.elsewhere(wait=False) is not None
    assert (owner.elsewhere(wait=True) is not None) == beats
    assert sum(slept) == (1.125 if beats else 3.0)


@pytest.mark.parametrize("hours", [-1, 1])
def test_neither_a_long_dead_owner_nor_a_clock_set_back_makes_one_live(
    file: Path, hours: int
) -> None:
    when = time.time() + 3600 * hours
    os.utime(file, (when, when))
    slept: list[float] = []
    assert OwnerFile(file, sleep=slept.append).elsewhere(wait=True) is None
    assert bool(slept) == (hours > 0)


@pytest.mark.parametrize("content", ["", "{}", "[1]"])
def test_a_malformed_file_names_no_owner(file: Path, content: str) -> None:
    file.write_text(content)
    assert OwnerFile(file).elsewhere(wait=True) is None


def test_a_lock_that_does_not_reach_the_owners_host_is_not_enough(file: Path) -> None:
    run = RunDirectory(file.parent)
    run.write(RunRecord("tiny", "abc", Status.RUNNING, {}))
    run._owner = OwnerFile(file, sleep=lambda seconds: os.utime(file))
    with pytest.raises(RunDirectoryError, match="owns it: process 7 on elsewhere since 2026"):
        run.claim()
    # Nor is the run taken for killed.
    assert not run.mark_killed()


def test_a_long_wait_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(locks, "_QUIET_SECONDS", 0.05)
    lock_file = tmp_path / "lock"
    taken, said = threading.Event(), threading.Event()
    real = print

    def tell(*words: object, **more: Any) -> None:
        real(*words, **more)
        said.set()

    def hold() -> None:
        with FileLock(lock_file):
            taken.set()
            said.wait(60)

    monkeypatch.setattr("builtins.print", tell)
    threading.Thread(target=hold).start()
    assert taken.wait(60)
    with locks.locked(lock_file, "the folder of runs"):
        assert said.is_set()
    waiting = f"waiting for the folder of runs: another process holds {lock_file}\n"
    assert capsys.readouterr().err == waiting


def test_another_wait_says_once_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    locks.LongWait("nothing").poll()
    monkeypatch.setattr(locks, "_QUIET_SECONDS", 0.0)
    wait = locks.LongWait("a free GPU")
    wait.poll()
    wait.poll()
    assert capsys.readouterr().err == "waiting for a free GPU\n"


def test_a_lock_that_is_free_says_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locks.locked(tmp_path / "lock", "the folder of runs"):
        assert is_held(tmp_path / "lock")
    assert capsys.readouterr().err == ""
