"""A cluster on this machine: its tasks as processes, and what happens when they are killed.

Starting five TensorFlow processes costs much: two tests show what a cluster promises, and `make
soak` runs the others. What one process can show is in tests/unit/cluster.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import Popen

import pytest
import tensorflow.compat.v1 as tf

from runner.cluster.addresses import free_addresses

from .conftest import Command

TINY = "+experiment=tiny"
LOCAL = ("cluster=local", "cluster.recovery_wait_secs=0.2", "cluster.grace_secs=20")
SLOW = "data._target_=tests.tiny.odd.Slow"


class Watched:
    """A running command whose lines are read as they come."""

    def __init__(self, process: Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self.lines.append(line.rstrip("\n"))

    def wait(self, pattern: str, count: int = 1, seconds: float = 90) -> re.Match[str]:
        """Waits until so many lines match, and returns the match of the last of these."""
        deadline = time.monotonic() + seconds
        while True:
            found = [match for line in self.lines if (match := re.fullmatch(pattern, line))]
            if len(found) >= count:
                return found[count - 1]
            assert time.monotonic() < deadline, "\n".join([pattern, *self.lines])
            assert self.process.poll() is None, "\n".join(self.lines)
            time.sleep(0.05)

    def count(self, pattern: str) -> int:
        """Returns how many lines match."""
        return sum(re.fullmatch(pattern, line) is not None for line in list(self.lines))

    def pid(self, task: str, count: int = 1) -> int:
        return int(self.wait(rf"\[{task}\] process (\d+)", count)[1])

    def pids(self) -> list[int]:
        found = (re.fullmatch(r"\[[^]]+\] process (\d+)", line) for line in list(self.lines))
        return [int(match[1]) for match in found if match]

    def end(self) -> int:
        assert self.process.stderr is not None
        with self.process.stderr:
            self.lines += self.process.stderr.read().splitlines()
        self._reader.join()
        return self.process.wait(timeout=60)


WARM = (
    "scaffolds={body: {variables: {include: [body/dense/*]}, checkpoint: pretrained}}",
    "restoration.verify=true",
)


def pretrained(folder: Path) -> Path:
    """Makes the checkpoint of WARM."""
    source = folder / "pretrained"
    with tf.Graph().as_default(), tf.Session() as session:
        kernel = tf.get_variable("body/dense/kernel", [8, 4])
        bias = tf.get_variable("body/dense/bias", [4])
        session.run([kernel.initializer, bias.initializer])
        tf.train.Saver().save(session, str(source / "model"), write_meta_graph=False)
    return source


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_synchronous_cluster_is_one_run_with_the_metrics_of_all_its_tasks(
    make_command: Callable[..., Command], fresh: bool
) -> None:
    command = make_command(fresh)
    watched = Watched(
        command.start(TINY, *LOCAL, "cluster.synchronous=true", "cluster.evaluator=true")
    )
    assert watched.end() == 0, "\n".join(watched.lines)
    assert "[worker 0] step 20/20  " in "\n".join(watched.lines)
    assert watched.lines[0].startswith("[ps 0] process ")
    assert living(watched.pids()) == []
    assert (command.record("tiny/001").status, command.steps("tiny/001")) == ("FINISHED", [10, 20])
    (run,) = command.tracked("tiny")
    assert run.info.status == "FINISHED"
    history = {
        name: [each.step for each in command.client().get_metric_history(run.info.run_id, name)]
        for name in ("train/loss", "worker0/train/loss", "validation/loss")
    }
    assert history == {
        "train/loss": [5, 10, 15, 20],
        "worker0/train/loss": [5, 10, 15, 20],
        "validation/loss": [10, 20],
    }
    last = command.client().get_metric_history(run.info.run_id, "evaluator/validation/loss")[-1]
    assert (last.step, last.value) == (20, run.data.metrics["validation/loss"])


def test_each_task_may_be_killed_and_comes_back(command: Command) -> None:
    source = pretrained(command.folder)
    watched = Watched(
        command.start(
            TINY,
            *LOCAL,
            SLOW,
            *WARM,
            "cluster.restarts=2",
            "train.steps=100000",
            "tracking=none",
        )
    )
    watched.wait(r"\[worker 0\] trains from step \d+")
    checkpoint = command.folder / "runs/tiny/001/checkpoints/checkpoint"
    while not checkpoint.exists():
        assert watched.process.poll() is None
        time.sleep(0.1)

    os.kill(watched.pid("worker 0"), signal.SIGKILL)
    watched.wait(r"\[worker 0\] was killed by SIGKILL; it is started again, 1 times left")
    watched.wait(r"\[worker 0\] trains from step \d+", 2)

    shutil.rmtree(source)
    steps = command.steps("tiny/001")
    os.kill(watched.pid("chief"), signal.SIGKILL)
    watched.wait(r"\[chief\] tiny: resumes in runs/tiny/001")
    watched.wait(r"\[chief\]   own checkpoint: pretrained sources not read")
    assert int(watched.wait(r"\[chief\] cluster: trains from step (\d+)", 2)[1]) >= steps[-1]

    # The session to come may still be one that the chief's return gives the worker.
    known = watched.count(r"\[worker 0\] trains from step \d+")
    later = command.steps("tiny/001")
    os.kill(watched.pid("ps 0"), signal.SIGKILL)
    watched.wait(r"\[ps 0\] serves", 2)
    assert int(watched.wait(r"\[chief\] cluster: trains from step (\d+)", 3)[1]) >= later[-1]
    begun = watched.wait(r"\[worker 0\] trains from step (\d+)", known + 1)
    assert int(begun[1]) >= steps[-1]

    watched.process.send_signal(signal.SIGINT)
    assert watched.end() == 130
    assert living(watched.pids()) == []
    assert command.record("tiny/001").status == "KILLED"


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("synchronous", [False, True], ids=["asynchronous", "synchronous"])
def test_a_run_with_every_fault_ends_as_it_should(command: Command, synchronous: bool) -> None:
    pretrained(command.folder)
    # Far more than are taken before the last fault, as long as batches come slowly; and no multiple
    # of those at which is saved.
    steps = 1000
    slow, evaluating = command.folder / "slow", command.folder / "evaluating"
    slow.touch()
    watched = Watched(
        command.start(
            TINY,
            *LOCAL,
            *WARM,
            "data._target_=tests.tiny.odd.Held",
            f"cluster.synchronous={synchronous}",
            "cluster.ps=2",
            "cluster.restarts=9",
            f"train.steps={steps}",
            "train.log_every=1",
            "train.checkpoint_every=70",
            "train.evaluate_every=100000",
            "tracking=none",
        )
    )
    checkpoint = command.folder / "runs/tiny/001/checkpoints/checkpoint"
    chief_begins = r"\[chief\] cluster: trains from step (\d+)"
    worker_begins = r"\[worker 0\] trains from step (\d+)"
    worker_steps = r"\[worker 0\] step \d+/\d+ .*"

    def kill(task: str, process: int = 1) -> None:
        os.kill(watched.pid(task, process), signal.SIGKILL)
        watched.wait(rf"\[{task}\] process \d+", process + 1)

    def begins(pattern: str, known: int) -> int:
        """Waits for one session more than were known, and returns its first step."""
        return int(watched.wait(pattern, known + 1)[1])

    def awaited(file: Path) -> None:
        deadline = time.monotonic() + 240
        while not file.exists():
            assert watched.process.poll() is None, "\n".join([str(file), *watched.lines])
            assert time.monotonic() < deadline, "\n".join([str(file), *watched.lines])
            time.sleep(0.02)

    # The chief, before its first checkpoint: the sources are restored under a worker that trains,
    # and may not even notice.
    watched.wait(r"\[worker 0\] step [2-9]/\d+ .*")
    kill("chief")
    assert not checkpoint.exists()
    assert begins(chief_begins, 1) < 70
    watched.wait(worker_steps, watched.count(worker_steps) + 1)

    awaited(checkpoint)
    known = watched.count(worker_begins)
    kill("worker 0")
    begins(worker_begins, known)

    saved = command.steps("tiny/001")[-1]
    known = watched.count(worker_begins)
    kill("ps 1")
    assert begins(chief_begins, 2) >= saved
    assert begins(worker_begins, known) >= saved

    # A signal to the chief alone: it saves, and the worker waits for it to come back.
    known = watched.count(worker_begins)
    os.kill(watched.pid("chief", 2), signal.SIGTERM)
    watched.wait(r"\[chief\] ended with 143; it is started again, .*")
    left = command.steps("tiny/001")[-1]
    assert saved <= left < steps
    assert begins(chief_begins, 3) >= left
    assert begins(worker_begins, known) >= left

    # The chief in its last evaluation, after which nothing is saved yet.
    slow.unlink()
    awaited(evaluating)
    kill("chief", 3)
    evaluating.unlink()
    saved = command.steps("tiny/001")[-1]
    assert left <= saved < steps
    assert begins(chief_begins, 4) >= saved

    # A server at that time: nobody can save what it held.
    awaited(evaluating)
    kill("ps 0")
    evaluating.unlink()
    watched.wait(r"\[chief\] ended with 137; it is started again, .*")

    # The worker while the chief evaluates: it comes back to nothing but the end.
    awaited(evaluating)
    known = watched.count(worker_begins)
    kill("worker 0", 2)
    assert begins(worker_begins, known) >= steps
    evaluating.unlink()
    assert watched.end() == 0, "\n".join(watched.lines)
    assert living(watched.pids()) == []
    assert command.record("tiny/001").status == "FINISHED"
    # Asynchronous steps may be in flight when the last one is taken.
    assert 0 <= command.steps("tiny/001")[-1] - steps <= (0 if synchronous else 3)
    assert "Traceback" not in "\n".join(watched.lines)


@pytest.mark.soak
def test_nothing_is_left_when_the_starting_process_is_killed(fresh_command: Command) -> None:
    watched = Watched(
        fresh_command.start(TINY, *LOCAL, SLOW, "train.steps=100000", "tracking=none")
    )
    watched.wait(r"\[worker 0\] trains from step \d+")
    watched.wait(r"\[chief\] step \d+/.*")
    watched.process.kill()
    watched.end()
    deadline = time.monotonic() + 40
    while left := living(watched.pids()):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert fresh_command.record("tiny/001").status == "KILLED"  # It was saved, as after SIGTERM.


@pytest.mark.soak
def test_a_signal_to_all_tasks_at_once_loses_no_step(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    chief, worker, server = free_addresses(3)
    cluster = {"chief": [chief], "worker": [worker], "ps": [server]}
    tasks = {}
    for kind in cluster:
        task = {"type": kind, "index": 0}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
        arguments = ("cluster.synchronous=true", SLOW, "train.steps=100000", "tracking=none")
        often = ("train.log_every=1", "train.checkpoint_every=100000")
        tasks[kind] = Watched(command.start(TINY, *arguments, *often))
    tasks["worker"].wait(r"step (\d+)/100000 .*", 3)
    for watched in tasks.values():
        watched.process.terminate()
    assert {kind: watched.end() for kind, watched in tasks.items()} == dict.fromkeys(tasks, 143)
    taken = [line for line in tasks["worker"].lines if line.startswith("step ")]
    last = int(taken[-1].partition(" ")[2].partition("/")[0])
    (saved,) = command.steps("tiny/001")
    # The worker hears of its last update from the servers, which the chief may have left by then.
    assert saved - last in (0, 1), (saved, last)
    assert command.record("tiny/001").status == "KILLED"


@pytest.mark.soak
def test_the_trials_of_a_sweep_may_be_clusters(command: Command) -> None:
    done = command.run(
        *("-m", TINY, *LOCAL, "cluster.workers=1", "hydra/sweeper=optuna"),
        *("hydra.sweeper.n_trials=2", "hydra/sweeper/pruner=median"),
        "hydra.sweeper.pruner.n_startup_trials=1",
        # The second is worse at its first evaluation already.
        "hydra.sweeper.custom_search_space={_target_: tests.tiny.spaces.worse_each_time}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = {run.info.run_name: run for run in command.tracked("tiny")}
    parent = runs.pop("tiny sweep")
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    assert {name: run.info.status for name, run in runs.items()} == {
        "tiny 001": "FINISHED",
        "tiny 002": "KILLED",
    }
    assert "runner.pruned" in runs["tiny 002"].data.tags
    trials = command.folder / "runs/sweeps/001/trials"
    first, second = (json.loads((trials / f"000{number}.json").read_text()) for number in (0, 1))
    assert (first["status"], second["status"]) == ("FINISHED", "PRUNED")
    assert first["run_dir"].endswith("runs/tiny/001")
    assert [step for step, _ in first["curve"]] == [10, 20]
    assert [step for step, _ in second["curve"]] == [10]
    assert set(first["metrics"]) == {"loss", "accuracy"}
    assert json.loads(parent.data.tags["runner.sweep.best_run"]) == [first["run_dir"]]


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
