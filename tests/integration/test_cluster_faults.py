"""A cluster on this machine whose tasks die at any time."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from contextlib import suppress

import pytest

from .conftest import Command
from .test_cluster import LOCAL, TINY, WARM, Watched, living, pretrained

TASKS = ("chief", "chief", "worker 0", "worker 1", "ps 0", "ps 0", "ps 1")
FAULTS = 25


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("synchronous", [False, True], ids=["asynchronous", "synchronous"])
def test_a_run_goes_on_to_its_end_whatever_dies_when(command: Command, synchronous: bool) -> None:
    pretrained(command.folder)
    steps = 300
    slow, evaluating = command.folder / "slow", command.folder / "evaluating"
    slow.touch()
    watched = Watched(
        command.start(
            TINY,
            *LOCAL,
            *WARM,
            "data._target_=tests.tiny.odd.Held",
            f"cluster.synchronous={synchronous}",
            "cluster.workers=3",
            "cluster.ps=2",
            f"cluster.restarts={FAULTS}",
            "cluster.max_wait_secs=90",
            f"train.steps={steps}",
            "train.checkpoint_every=7",
            "train.evaluate_every=100000",
            "tracking=none",
        )
    )
    watched.wait(r"\[worker 0\] trains from step \d+")
    generator = random.Random(synchronous)
    for _ in range(FAULTS):
        time.sleep(generator.choice([0.05, 0.3, 0.8, 1.5, 2.5, 4.0]))
        task = generator.choice(TASKS)
        number = signal.SIGKILL
        if task == "chief" and generator.random() < 0.3:
            number = signal.SIGTERM
        pid = watched.pid(task, watched.count(rf"\[{task}\] process \d+"))
        watched.lines.append(f"{number.name} for {task}")
        with suppress(ProcessLookupError):  # The one before has ended it, or is about to.
            os.kill(pid, number)
    slow.unlink()
    deadline = time.monotonic() + 300
    while watched.process.poll() is None:
        assert time.monotonic() < deadline, "\n".join(watched.lines)
        evaluating.unlink(missing_ok=True)
        time.sleep(0.1)
    assert watched.end() == 0, "\n".join(watched.lines)
    assert living(watched.pids()) == []
    assert command.record("tiny/001").status == "FINISHED"
    assert 0 <= command.steps("tiny/001")[-1] - steps <= (0 if synchronous else 3)
    # Of a signal, or of a server that is lost where no session recovers.
    codes = re.findall(r"ended with (\d+)", "\n".join(watched.lines))
    assert set(codes) <= {"143", "137"}, "\n".join(watched.lines)
    assert "Traceback" not in "\n".join(watched.lines)
