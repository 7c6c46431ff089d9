from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner.system import lifeline
from runner.system.lifeline import Worker, at_work
from runner.system.locks import process_name, this_process

ROOT = Path(__file__).resolve().parents[3]
SWEEP, INIT = 100, 1


def _ends(worker: Worker, *parents: int) -> list[bool]:
    """Whether each of several looks, with these parents, ends the process."""
    found = []
    for parent in parents:
        ended: list[int] = []
        worker.look(parent, lambda ended=ended: ended.append(1))  # type: ignore[misc]
        found.append(bool(ended))
    return found


def test_a_process_ends_once_its_parent_is_another_one() -> None:
    assert _ends(Worker(SWEEP), SWEEP, SWEEP, SWEEP, INIT) == [False, False, False, True]


def test_it_does_not_end_at_the_first_look_after_a_trial() -> None:
    worker = Worker(SWEEP)
    assert _ends(worker, SWEEP) == [False]
    with worker.at_work():
        assert _ends(worker, SWEEP, INIT, INIT) == [False, False, False]
    # Who launched it may still have to say what came of it.
    assert _ends(worker, INIT, INIT) == [False, True]


def test_a_trial_between_two_looks_counts_too() -> None:
    worker = Worker(SWEEP)
    assert _ends(worker, INIT) == [False]
    with worker.at_work():
        pass
    assert _ends(worker, INIT, INIT) == [False, True]


def test_only_what_the_sweep_itself_started_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[Worker] = []
    monkeypatch.setattr(lifeline, "_workers", [])
    monkeypatch.setattr(Worker, "watch", lambda worker: watched.append(worker))
    for sweeper in (this_process(), "another:1", ""):
        with at_work(sweeper):
            assert watched == []
    for _ in range(2):
        with at_work(process_name(os.getppid())):
            assert len(watched) == 1
    # The next trial of one that is left alone counts, though its parent is another now.
    with at_work("another:1"):
        assert _ends(watched[0], INIT, INIT) == [False, False]


PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
CHILD = """
import os, time
from runner.system.lifeline import Worker
parent = os.getppid()
worker = Worker(parent)
worker.watch(0.02)
with worker.at_work():
    print(os.getpid(), flush=True)
    while os.getppid() == parent:
        time.sleep(0.01)
    time.sleep(0.2)
    print("recorded")
ends = os.pipe()
os.read(ends[0], 1)
print("more")
"""


def test_a_process_whose_parent_is_killed_ends_after_its_trial() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        parent.kill()
        # The end of its output, which the child holds too.
        assert parent.communicate(timeout=30)[0] == "recorded\n"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
