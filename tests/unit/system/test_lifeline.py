"""A process ends when the one that started it has gone: at once, or between two trials."""

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

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}


def _ends(worker: Worker) -> bool:
    """Whether a look, after the parent has gone, ends the process."""
    ended: list[int] = []
    worker.end_if_idle(lambda: ended.append(1))
    return bool(ended)


def test_a_worker_does_not_end_during_a_trial_nor_at_the_first_look_after_it() -> None:
    worker = Worker()
    assert _ends(worker) is False
    with worker.at_work():
        assert [_ends(worker), _ends(worker)] == [False, False]
    # Its launcher may still have to record the result.
    assert _ends(worker) is False
    with worker.at_work():
        pass  # A trial between two looks counts too.
    assert [_ends(worker), _ends(worker)] == [False, True]


def test_only_what_the_sweep_itself_started_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[int] = []
    monkeypatch.setattr(lifeline, "_workers", [])
    monkeypatch.setattr(lifeline, "when_orphaned", lambda parent, end: watched.append(parent))
    for sweeper in (this_process(), "another:1", ""):
        with at_work(sweeper):
            assert watched == []
    for _ in range(2):
        with at_work(process_name(os.getppid())):
            assert watched == [os.getppid()]
    # The next trial of one that is left alone counts, though its parent is another now.
    with at_work("another:1"):
        assert not _ends(lifeline._workers[0])


# Starts a process that runs a program, and waits for it.
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
WORKER = """
import os
from runner.system import lifeline
worker = lifeline.Worker()
lifeline.when_orphaned(os.getppid(), lambda: worker.end_if_idle(lifeline._end_worker), 0.02)
with worker.at_work():
    print(os.getpid(), flush=True)
print("recorded")
os.read(os.pipe()[0], 1)
"""
TASK = """
import os, signal, sys
from runner.system.lifeline import end_with_launcher
def saves(number, frame):
    print("saved")
    sys.exit()
signal.signal(signal.SIGTERM, saves)
end_with_launcher({"RUNNER_LIFELINE": str(os.getppid())})
print(os.getpid(), flush=True)
signal.pause()
"""


@pytest.mark.parametrize(("program", "said"), [(WORKER, "recorded\n"), (TASK, "saved\n")])
def test_a_process_whose_parent_is_killed_ends(program: str, said: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, program], env=ENVIRONMENT, stdout=subprocess.PIPE, bufsize=0
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        parent.kill()
        # The end of its output, which the child holds too.
        assert parent.communicate(timeout=30)[0].decode() == said
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_the_output_of_a_task_without_a_reader_ends_no_command() -> None:
    """Commands mask secrets in their output: they must not mask that it may be discarded."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "runner", "+experiment=lstm_cnn", "--cfg", "job"],
        env={**ENVIRONMENT, "RUNNER_LIFELINE": str(os.getpid())},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
