from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf

from runner.errors import (
    ClusterError,
    ConfigError,
    InterruptedRunError,
    Problem,
    PrunedRunError,
    RunInUseError,
    SweepError,
)
from runner.runs.run_directory import RunDirectory, RunRecord
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.job import Job, carry_out, job_of
from runner.sweeps.sweep_directory import SweepDirectory
from runner.sweeps.trial import Trial
from runner.system.locks import this_process
from runner.system.signals import Interruption
from runner.system.status import Status


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDirectory:
    directory = SweepDirectory(tmp_path / "sweep")
    directory.stop_on_failure(True)
    directory.add([Attempt(0, 1, ("seed=1",), {"seed": "1"})])
    return directory


def _carry_out(sweep: SweepDirectory, train: Callable[[Trial], float | None]) -> float | None:
    return carry_out(Job(sweep, sweep.attempt(0)), train)


def _raising(error: BaseException) -> Callable[[Trial], float | None]:
    def train(trial: Trial) -> float | None:
        raise error

    return train


def test_what_is_returned_is_recorded(sweep: SweepDirectory, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.best.mkdir(parents=True)
    run.best_record.write_text(json.dumps({"step": 3, "metrics": {"loss": 0.5, "accuracy": 1.0}}))

    def train(trial: Trial) -> float:
        assert trial.parent == str(sweep.path)
        assert trial.tags == {"runner.sweep.seed": "1"}
        assert sweep.attempt(0).read().status is TrialStatus.RUNNING
        trial.started(run.path)
        return 0.5

    assert _carry_out(sweep, train) == 0.5
    attempt = sweep.attempt(0).read()
    assert (attempt.status, attempt.objective) == (TrialStatus.FINISHED, 0.5)
    assert attempt.metrics == {"loss": 0.5, "accuracy": 1.0}
    assert attempt.run_dir == str(run.path)


ERRORS: dict[str, tuple[BaseException, str, int]] = {
    "ours": (ConfigError(Problem("no data")), "no data", 2),
    "a user's": (ValueError("mine"), "ValueError: mine", 1),
    "an exit": (SystemExit(3), "SystemExit: 3", 1),
    "memory": (MemoryError(), "MemoryError: ", 1),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_trial_that_raises_has_failed(
    sweep: SweepDirectory, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error, message, code = ERRORS[name]
    with pytest.raises(SweepError) as raised:
        _carry_out(sweep, _raising(error))
    assert str(raised.value) == message
    attempt = sweep.attempt(0).read()
    assert (attempt.status, attempt.message) == (TrialStatus.FAILED, message)
    assert attempt.exit_code == raised.value.exit_code == code
    assert f"runner: trial 0 seed=1 failed: {message}" in capsys.readouterr().err
    assert sweep.stopped()


def test_an_objective_that_is_nan_has_failed(sweep: SweepDirectory) -> None:
    with pytest.raises(SweepError, match="the objective is nan"):
        _carry_out(sweep, lambda trial: float("nan"))
    assert sweep.attempt(0).read().status is TrialStatus.FAILED


def test_the_chief_of_a_trial_whose_objective_is_nan_has_told_its_exit_code_alone(
    sweep: SweepDirectory, tmp_path: Path
) -> None:
    def train(trial: Trial) -> float:
        RunDirectory(tmp_path).write(RunRecord("tiny", "f", Status.FAILED, {}, float("nan")))
        trial.started(tmp_path)
        raise ClusterError(Problem("chief ended with 1"))

    with pytest.raises(SweepError, match="the objective is nan"):
        _carry_out(sweep, train)
    assert sweep.attempt(0).read().message == "the objective is nan"


def test_a_trial_leaves_the_working_directory_as_it_was(
    sweep: SweepDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()

    def train(trial: Trial) -> float:
        os.chdir("other")
        raise ValueError("mine")

    with pytest.raises(SweepError, match="ValueError: mine"):
        _carry_out(sweep, train)
    assert Path.cwd() == tmp_path


def test_the_curve_is_that_of_the_run_and_not_of_former_attempts(
    sweep: SweepDirectory, tmp_path: Path
) -> None:
    def train(trial: Trial) -> float:
        trial.started(tmp_path)
        trial.evaluated({"loss": 1.0, "accuracy": 0.5}, 2)
        trial.evaluated({"loss": 0.5, "accuracy": 0.5}, 3)
        return 0.5

    RunDirectory(tmp_path).evaluations.write_text('[1, {"loss": 2.0}]\n[2, {"loss": 9.0}]')
    sweep.attempt(0).update(metric="validation/loss", curve=((4, 8.0),))
    _carry_out(sweep, train)
    assert sweep.attempt(0).read().curve == ((1, 2.0), (2, 1.0), (3, 0.5))


def test_a_process_is_at_work_while_it_trains(
    sweep: SweepDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []

    @contextmanager
    def at_work(sweeper: str) -> Iterator[None]:
        said.append(sweeper)
        yield
        said.append(sweep.attempt(0).read().status.value)

    monkeypatch.setattr("runner.sweeps.job.at_work", at_work)
    sweep.attempt(0).update(sweeper="host:1")
    assert _carry_out(sweep, lambda trial: float(len(said))) == 1.0
    assert said == ["host:1", "FINISHED"]


def test_a_pruned_trial_is_no_failure(sweep: SweepDirectory, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    run.write(RunRecord("tiny", "f", Status.RUNNING, {}, objective=0.25))

    def train(trial: Trial) -> float:
        trial.started(run.path)
        raise PrunedRunError(Problem("pruned at step 3"))

    assert _carry_out(sweep, train) == 0.25
    attempt = sweep.attempt(0).read()
    assert (attempt.status, attempt.objective) == (TrialStatus.PRUNED, 0.25)
    assert not sweep.stopped()


def test_a_signal_to_another_process_kills_only_the_trial(sweep: SweepDirectory) -> None:
    with pytest.raises(SweepError, match="ended by SIGTERM"):
        _carry_out(sweep, _raising(InterruptedRunError(signal.SIGTERM)))
    assert sweep.attempt(0).read().status is TrialStatus.KILLED


def test_a_signal_to_the_sweeping_process_ends_the_sweep(sweep: SweepDirectory) -> None:
    sweep.attempt(0).update(sweeper=this_process())
    error = InterruptedRunError(signal.SIGINT)
    with pytest.raises(SystemExit) as raised:
        _carry_out(sweep, _raising(error))
    assert (raised.value.code, raised.value.__cause__) == (130, error)
    assert sweep.attempt(0).read().status is TrialStatus.KILLED


def test_nothing_starts_in_a_sweep_that_has_stopped(sweep: SweepDirectory) -> None:
    sweep.failed()
    assert _carry_out(sweep, _raising(AssertionError())) is None
    assert sweep.attempt(0).read().status is TrialStatus.SKIPPED


def test_what_is_called_off_does_not_start(sweep: SweepDirectory) -> None:
    sweep.attempt(0).settle()
    assert _carry_out(sweep, _raising(AssertionError())) is None


def test_what_its_launcher_starts_again_goes_on(sweep: SweepDirectory) -> None:
    for status in (TrialStatus.RUNNING, TrialStatus.KILLED):
        sweep.attempt(0).update(status=status, message="killed")
        assert _carry_out(sweep, lambda trial: 0.5) == 0.5
        attempt = sweep.attempt(0).read()
        assert (attempt.status, attempt.message) == (TrialStatus.FINISHED, "")


def test_what_the_sweep_has_seen_killed_is_not_started_again(sweep: SweepDirectory) -> None:
    sweep.attempt(0).update(status=TrialStatus.KILLED)
    sweep.attempt(0).settle()
    assert _carry_out(sweep, _raising(AssertionError())) is None


def test_the_runs_directory_is_known_from_its_start(sweep: SweepDirectory, tmp_path: Path) -> None:
    def train(trial: Trial) -> float:
        trial.started(tmp_path / "run")
        attempt = sweep.attempt(0).read()
        assert (attempt.run_dir, attempt.process) == (str(tmp_path / "run"), this_process())
        return 0.5

    assert _carry_out(sweep, train) == 0.5


def test_a_signal_beside_the_trial_ends_the_sweep_too(sweep: SweepDirectory) -> None:
    sweep.attempt(0).update(sweeper=this_process())
    with Interruption().handled() as interruption, interruption.deferred():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit) as raised:
            _carry_out(sweep, _raising(AssertionError()))
    assert raised.value.code == 143
    assert sweep.attempt(0).read().status is TrialStatus.SKIPPED


def test_what_is_called_off_before_its_start_is_skipped(sweep: SweepDirectory) -> None:
    sweep.attempt(0).call_off()
    assert _carry_out(sweep, _raising(AssertionError())) is None
    assert sweep.attempt(0).read().status is TrialStatus.SKIPPED


def _signalled(number: signal.Signals) -> Callable[[Trial], float]:
    """Returns what is sent a signal in its loop, and saves its last step."""

    def train(trial: Trial) -> float:
        with Interruption().handled() as interruption, interruption.deferred():
            signal.raise_signal(number)
            interruption.check()
        return 0.5

    return train


@pytest.fixture
def submitit(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseException]]:
    """A job of submitit's; the error with which its handler of USR2 ends it."""
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    errors: list[BaseException] = [SystemExit(-1)]

    def handle(number: int, frame: object) -> None:
        raise errors.pop()

    before = signal.signal(signal.SIGUSR2, handle)
    yield errors
    signal.signal(signal.SIGUSR2, before)


def test_a_job_out_of_time_is_saved_and_started_again(
    sweep: SweepDirectory, submitit: list[BaseException]
) -> None:
    with pytest.raises(SystemExit) as raised:
        _carry_out(sweep, _signalled(signal.SIGUSR2))
    assert raised.value.code == -1
    assert not sweep.stopped()
    attempt = sweep.attempt(0).read()
    assert (attempt.status, attempt.message[:11]) == (TrialStatus.WAITING, "out of time")
    assert _carry_out(sweep, lambda trial: 0.5) == 0.5
    assert sweep.attempt(0).read().status is TrialStatus.FINISHED


def test_a_job_that_is_not_started_again_says_why(
    sweep: SweepDirectory, submitit: list[BaseException]
) -> None:
    submitit[:] = [RuntimeError("Job not requeued because: timed-out too many times.")]
    with pytest.raises(SweepError, match="ended by SIGUSR2: Job not requeued because: timed-out"):
        _carry_out(sweep, _signalled(signal.SIGUSR2))
    attempt = sweep.attempt(0).read()
    assert (attempt.status, attempt.exit_code) == (TrialStatus.KILLED, 140)
    assert attempt.message.endswith("timed-out too many times.")


def test_a_job_that_slurm_preempts_leaves_no_result(
    sweep: SweepDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    with pytest.raises(SystemExit) as raised:
        _carry_out(sweep, _signalled(signal.SIGTERM))
    assert raised.value.code == 143
    assert sweep.attempt(0).read().status is TrialStatus.KILLED
    assert _carry_out(sweep, lambda trial: 0.5) == 0.5


def test_a_run_of_the_same_fingerprint_is_waited_for(
    sweep: SweepDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = [RunInUseError(Problem("in use"), tmp_path)]

    def train(trial: Trial) -> float:
        if errors:
            raise errors.pop()
        return 0.5

    assert _carry_out(sweep, train) == 0.5
    assert capsys.readouterr().out == f"{tmp_path} is in use; waiting for that\n"


OURS = "hydra_plugins.runner_sweepers.grid.GridSweeper"


@pytest.mark.parametrize(
    ("target", "mode", "found"),
    [
        (OURS, RunMode.MULTIRUN, True),
        (OURS, RunMode.RUN, False),
        ("hydra._internal.core_plugins.basic_sweeper.BasicSweeper", RunMode.MULTIRUN, False),
    ],
)
def test_only_jobs_of_our_sweepers_have_an_attempt(target: str, mode: RunMode, found: bool) -> None:
    config = OmegaConf.create(
        {"sweeper": {"_target_": target}, "sweep": {"dir": "d"}, "job": {"num": 3}, "mode": mode}
    )
    job = job_of(config)
    assert (job is not None) == found
    if job is not None:
        assert job.file.path == Path("d/trials/0003.json")
