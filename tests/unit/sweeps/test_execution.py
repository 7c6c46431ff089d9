"""Launchers in this process that lose trials as real ones do."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from runner.errors import InterruptedRunError, SweepError
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.execution import Execution, Planned
from runner.sweeps.job import Job, carry_out
from runner.sweeps.points import Point
from runner.sweeps.sweep_directory import SweepDirectory
from runner.sweeps.trial import Trial
from runner.system.signals import Interruption

# What a trial does, by its overrides.
Work = Callable[[Sequence[str]], float]


class Died(BaseException):
    """A process that ends without a word."""


class Launcher:
    """Carries trials out in turn; the death of one process takes those after it along."""

    def __init__(self, directory: SweepDirectory, work: Work) -> None:
        self.directory, self.work = directory, work
        self.launched: list[list[str]] = []

    def __call__(self, overrides: Sequence[Sequence[str]], first: int) -> None:
        self.launched.append([" ".join(each) for each in overrides])
        for number, each in enumerate(overrides, first):

            def train(trial: Trial, each: Sequence[str] = each) -> float:
                return self.work(each)

            try:
                with contextlib.suppress(SweepError):
                    carry_out(Job(self.directory, self.directory.attempt(number)), train)
            except Died as error:
                for started in range(number + 1, min(number + 2, first + len(overrides))):
                    self.directory.attempt(started).update(status=TrialStatus.RUNNING)
                raise RuntimeError("a worker was terminated") from error


@pytest.fixture
def directory(tmp_path: Path) -> SweepDirectory:
    made = SweepDirectory(tmp_path)
    made.stop_on_failure(False)
    return made


def _planned(*names: str) -> list[Planned]:
    return [Planned(number, Point((name,), {"x": name})) for number, name in enumerate(names)]


def _brief(attempts: Sequence[Attempt]) -> list[str]:
    return [f"{each.values['x']} {each.status.value} {each.number}" for each in attempts]


def _failing(*names: str) -> Work:
    def work(overrides: Sequence[str]) -> float:
        if overrides[0] in names:
            raise ValueError("no")
        return 1.0

    return work


def test_a_failure_leaves_the_others(directory: SweepDirectory) -> None:
    launcher = Launcher(directory, _failing("b"))
    attempts = Execution(directory, launcher, retries=0).run(_planned("a", "b", "c"))
    assert _brief(attempts) == ["a FINISHED 1", "b FAILED 1", "c FINISHED 1"]
    assert launcher.launched == [["a", "b", "c"]]


def test_a_failure_stops_the_sweep_on_request(directory: SweepDirectory) -> None:
    directory.stop_on_failure(True)
    launcher = Launcher(directory, _failing("b"))
    attempts = Execution(directory, launcher, retries=0).run(_planned("a", "b", "c"))
    assert _brief(attempts) == ["a FINISHED 1", "b FAILED 1", "c SKIPPED 1"]


def test_a_trial_is_tried_again_before_it_stops_the_sweep(directory: SweepDirectory) -> None:
    directory.stop_on_failure(True)
    launcher = Launcher(directory, _failing("b"))
    attempts = Execution(directory, launcher, retries=2).run(_planned("a", "b", "c"))
    assert _brief(attempts) == ["a FINISHED 1", "b FAILED 3", "c SKIPPED 1"]
    assert launcher.launched == [["a", "b", "c"], ["b"], ["b"], ["c"]]
    assert directory.stopped()


def test_what_was_held_for_a_trial_tried_again_is_started_after_it(
    directory: SweepDirectory,
) -> None:
    directory.stop_on_failure(True)
    started: list[str] = []

    def work(overrides: Sequence[str]) -> float:
        started.append(overrides[0])
        if started.count("b") == 1 and overrides[0] == "b":
            raise ValueError("no")
        return 1.0

    execution = Execution(directory, Launcher(directory, work), retries=1)
    attempts = execution.run(_planned("a", "b", "c", "d"))
    assert _brief(attempts) == ["a FINISHED 1", "b FINISHED 2", "c FINISHED 1", "d FINISHED 1"]
    assert started == ["a", "b", "b", "c", "d"]
    assert not directory.stopped()


def test_without_a_request_to_stop_what_fails_is_tried_again_after_the_others(
    directory: SweepDirectory,
) -> None:
    launcher = Launcher(directory, _failing("b"))
    attempts = Execution(directory, launcher, retries=1).run(_planned("a", "b", "c"))
    assert _brief(attempts) == ["a FINISHED 1", "b FAILED 2", "c FINISHED 1"]
    assert launcher.launched == [["a", "b", "c"], ["b"]]


def test_the_death_of_a_process_stops_the_sweep_on_request(directory: SweepDirectory) -> None:
    directory.stop_on_failure(True)

    def work(overrides: Sequence[str]) -> float:
        if overrides[0] == "b":
            raise Died
        return 1.0

    launcher = Launcher(directory, work)
    attempts = Execution(directory, launcher, retries=0).run(_planned("a", "b", "c", "d"))
    # It took c along, which had begun; d never has.
    assert _brief(attempts) == ["a FINISHED 1", "b KILLED 1", "c KILLED 1", "d SKIPPED 1"]
    assert launcher.launched == [["a", "b", "c", "d"], ["b"], ["d"], ["c"]]
    assert attempts[2].message == "its process was killed: RuntimeError: a worker was terminated"


def test_what_a_dead_process_takes_along_is_not_blamed(
    directory: SweepDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    def work(overrides: Sequence[str]) -> float:
        if overrides[0] == "b":
            raise Died
        return 1.0

    launcher = Launcher(directory, work)
    attempts = Execution(directory, launcher, retries=0).run(_planned("a", "b", "c", "d"))
    assert _brief(attempts) == ["a FINISHED 1", "b KILLED 1", "c FINISHED 1", "d FINISHED 1"]
    assert launcher.launched == [["a", "b", "c", "d"], ["d"], ["b"], ["c"]]
    cause = "RuntimeError: a worker was terminated"
    assert attempts[1].message == f"its process was killed: {cause}"
    assert caplog.messages == [f"The launcher failed, {cause}"] * 2


def test_where_processes_die_apart_the_dead_are_not_launched_again(
    directory: SweepDirectory,
) -> None:
    def work(overrides: Sequence[str]) -> float:
        if overrides[0] == "b":
            raise Died
        return 1.0

    launcher = Launcher(directory, work)
    execution = Execution(directory, launcher, retries=0, collective=False)
    attempts = execution.run(_planned("a", "b", "c", "d"))
    assert _brief(attempts) == ["a FINISHED 1", "b KILLED 1", "c KILLED 1", "d FINISHED 1"]
    assert launcher.launched == [["a", "b", "c", "d"], ["d"]]


def test_a_killed_trial_is_tried_again_too(directory: SweepDirectory) -> None:
    deaths = iter([True, True, False])

    def work(overrides: Sequence[str]) -> float:
        if next(deaths):
            raise Died
        return 1.0

    launcher = Launcher(directory, work)
    assert _brief(Execution(directory, launcher, retries=2).run(_planned("a"))) == ["a FINISHED 3"]


def test_a_launcher_that_starts_nothing_is_an_error(directory: SweepDirectory) -> None:
    def launch(overrides: Sequence[Sequence[str]], first: int) -> None:
        raise OSError("no sbatch")

    with pytest.raises(SweepError, match="the launcher started no trial") as raised:
        Execution(directory, launch, retries=3).run(_planned("a", "b"))
    assert "OSError: no sbatch" in str(raised.value)


def test_a_signal_goes_through(directory: SweepDirectory) -> None:
    def launch(overrides: Sequence[Sequence[str]], first: int) -> None:
        raise InterruptedRunError(signal.SIGTERM)

    with pytest.raises(InterruptedRunError):
        Execution(directory, launch, retries=3).run(_planned("a"))


def test_after_a_signal_trials_elsewhere_are_called_off_and_waited_for(
    directory: SweepDirectory, capfd: pytest.CaptureFixture[str]
) -> None:
    def launch(overrides: Sequence[Sequence[str]], first: int) -> None:
        file = directory.attempt(first)
        started = threading.Event()

        def train() -> None:
            with file.lock:
                file.update(status=TrialStatus.RUNNING, process="elsewhere:1")
                started.set()
                while not file.called_off():
                    time.sleep(0.01)
                file.update(status=TrialStatus.KILLED, message="saved")

        threading.Thread(target=train).start()
        assert started.wait(60)
        signal.raise_signal(signal.SIGINT)

    withdrawn: list[Collection[int]] = []
    with Interruption().handled() as interruption:
        execution = Execution(
            directory, launch, retries=3, interruption=interruption, withdraw=withdrawn.append
        )
        with pytest.raises(InterruptedRunError, match="ended by SIGINT"):
            execution.run(_planned("a", "b"))
    attempts = [file.read() for file in directory.attempts()]
    assert _brief(attempts) == ["a KILLED 1", "b SKIPPED 1"]
    assert withdrawn == [{1}]
    assert (attempts[0].message, attempts[0].over) == ("saved", True)
    assert capfd.readouterr().err == "runner: waits for trials to save their last step\n"


def test_a_signal_that_the_launcher_swallows_is_not_lost(directory: SweepDirectory) -> None:
    def launch(overrides: Sequence[Sequence[str]], first: int) -> None:
        with contextlib.suppress(InterruptedRunError):
            signal.raise_signal(signal.SIGTERM)

    with Interruption().handled() as interruption:
        execution = Execution(directory, launch, retries=3, interruption=interruption)
        with pytest.raises(InterruptedRunError, match="ended by SIGTERM"):
            execution.run(_planned("a"))
