from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf

from runner.errors import (
    ConfigError,
    InterruptedRunError,
    Problem,
    PrunedRunError,
    RunInUseError,
    SweepError,
)
from runner.runs.run_directory import RunDirectory, RunRecord
from runner.sweeps.job import Job, Trial, job_of, run_attempt, terminate_on_cancel
from runner.sweeps.launchers import may_be_requeued, requeue_signals
from runner.sweeps.sweep_directory import Attempt, AttemptFile, SweepDirectory
from runner.system.locks import this_process
from runner.system.signals import Interruption
from runner.system.status import Status
from tests.support.sweeping import record_evaluation


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDirectory:
    directory = SweepDirectory(tmp_path / "sweep")
    directory.stop_on_failure(True)
    directory.add([Attempt(0, overrides=("seed=1",), values={"seed": "1"})])
    return directory


def _run_attempt(sweep: SweepDirectory, train: Callable[[Trial], float | None]) -> float | None:
    return run_attempt(Job(sweep, sweep.attempt(0), {}), train)


def _raising(error: BaseException) -> Callable[[Trial], float | None]:
    def train(trial: Trial) -> float | None:
        raise error

    return train


def test_an_attempt_is_recorded_from_its_start_to_its_end(
    sweep: SweepDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path / "run")
    run.best.mkdir(parents=True)
    run.best_record.write_text(json.dumps({"step": 3, "metrics": {"loss": 0.5, "accuracy": 1.0}}))
    record_evaluation(run.path, {"loss": 2.0}, 1)
    record_evaluation(run.path, {"loss": 9.0}, 2)
    at_work: list[str] = []

    @contextmanager
    def lifeline(sweeper: str) -> Iterator[None]:
        at_work.append(sweeper)
        yield
        at_work.append(sweep.attempt(0).read().status.value)

    def train(trial: Trial) -> float:
        assert at_work == ["host:1"]
        assert trial.parent == str(sweep.path)
        assert trial.tags == {"runner.sweep.seed": "1"}
        trial.started(run.path)
        attempt = sweep.attempt(0).read()
        assert (attempt.status, attempt.process) == (Status.RUNNING, this_process())
        assert attempt.run_dir == str(run.path)
        record_evaluation(run.path, {"loss": 1.0, "accuracy": 0.5}, 2)
        record_evaluation(run.path, {"loss": 0.5, "accuracy": 0.5}, 3)
        return 0.5

    monkeypatch.setattr("runner.sweeps.job.at_work", lifeline)
    # A curve of an attempt before is not that of the run.
    sweep.attempt(0).update(metric="validation/loss", curve=((4, 8.0),), sweeper="host:1")
    assert _run_attempt(sweep, train) == 0.5
    attempt = sweep.attempt(0).read()
    assert (attempt.status, attempt.objective) == (Status.FINISHED, 0.5)
    assert attempt.metrics == {"loss": 0.5, "accuracy": 1.0}
    assert attempt.curve == ((1, 2.0), (2, 1.0), (3, 0.5))
    assert at_work == ["host:1", "FINISHED"]


NAN = float("nan")
SIGTERM = InterruptedRunError(signal.SIGTERM)
PRUNED = PrunedRunError(Problem("pruned at step 3"))
FAILED, KILLED, NO_DATA = Status.FAILED, Status.KILLED, Problem("no data")
# What training raises, and the objective in the run's record -> status, message and exit code.
ENDS: dict[str, tuple[BaseException | None, float, Status, str, int]] = {
    "ours": (ConfigError(NO_DATA), 0.5, FAILED, "no data", 2),
    "a user's": (ValueError("mine"), 0.5, FAILED, "ValueError: mine", 1),
    "an exit": (SystemExit(3), 0.5, FAILED, "SystemExit: 3", 1),
    "nan": (None, NAN, FAILED, "the objective is nan", 1),
    "a signal": (SIGTERM, 0.5, KILLED, "ended by SIGTERM", 143),
    "pruned": (PRUNED, 0.5, Status.PRUNED, "pruned at", 0),
}


@pytest.mark.parametrize("name", ENDS)
def test_how_an_attempt_ends(
    sweep: SweepDirectory,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    error, objective, status, message, code = ENDS[name]
    (tmp_path / "run").mkdir()

    def train(trial: Trial) -> float:
        RunDirectory(tmp_path / "run").write(RunRecord("tiny", "f", Status.RUNNING, {}, objective))
        trial.started(tmp_path / "run")
        if error is not None:
            raise error
        trial.check(objective)  # As runs do.
        return objective

    if code:
        with pytest.raises(SweepError) as raised:
            _run_attempt(sweep, train)
        assert raised.value.exit_code == code
        assert f"runner: trial 0 seed=1 failed: {message}" in capsys.readouterr().err
    else:
        assert _run_attempt(sweep, train) == objective
    attempt = sweep.attempt(0).read()
    assert (attempt.status, attempt.exit_code) == (status, code)
    assert attempt.message.startswith(message)
    assert str(attempt.objective) == str(objective)
    assert sweep.stopped() is (status is Status.FAILED)


@pytest.mark.parametrize("inside", [True, False])
def test_a_signal_to_the_sweeping_process_ends_the_sweep(
    sweep: SweepDirectory, inside: bool
) -> None:
    sweep.attempt(0).update(sweeper=this_process())
    with Interruption().handled() as interruption, interruption.deferred():
        if not inside:
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit) as raised:
            _run_attempt(sweep, _raising(SIGTERM if inside else AssertionError()))
    assert raised.value.code == 143
    assert isinstance(raised.value.__cause__, InterruptedRunError)
    assert sweep.attempt(0).read().status is (Status.KILLED if inside else Status.SKIPPED)


# What has happened to an attempt before a launcher starts it -> its status afterwards.
BEFORE: dict[str, tuple[Callable[[SweepDirectory], object], Status]] = {
    "stopped": (lambda sweep: sweep.failed(), Status.SKIPPED),
    "cancelled": (lambda sweep: sweep.attempt(0).cancel(), Status.SKIPPED),
    "finalized": (lambda sweep: sweep.attempt(0).finalize(), Status.SKIPPED),
    "over": (lambda sweep: sweep.attempt(0).update(status=KILLED, over=True), Status.KILLED),
    "done": (lambda sweep: sweep.attempt(0).update(status=Status.FINISHED), Status.FINISHED),
}


@pytest.mark.parametrize("name", BEFORE)
def test_what_does_not_start(sweep: SweepDirectory, name: str) -> None:
    prepare, status = BEFORE[name]
    prepare(sweep)
    assert _run_attempt(sweep, _raising(AssertionError())) is None
    assert sweep.attempt(0).read().status is status


@pytest.mark.parametrize("status", [Status.RUNNING, Status.KILLED])
def test_what_is_started_again_is_resumed_once_its_run_is_free(
    sweep: SweepDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: Status
) -> None:
    sweep.attempt(0).update(status=status, message="killed")
    errors = [RunInUseError(Problem("in use"), tmp_path)]

    def train(trial: Trial) -> float:
        if errors:
            raise errors.pop()
        return 0.5

    assert _run_attempt(sweep, train) == 0.5
    # Another trial of the same fingerprint.
    assert capsys.readouterr().out == f"{tmp_path} is in use; waiting for it\n"
    attempt = sweep.attempt(0).read()
    assert (attempt.status, attempt.message) == (Status.FINISHED, "")


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


def test_a_job_out_of_time_is_saved_and_started_again_unless_that_was_too_often(
    sweep: SweepDirectory, submitit: list[BaseException]
) -> None:
    with pytest.raises(SystemExit) as raised:
        _run_attempt(sweep, _signalled(signal.SIGUSR2))
    assert raised.value.code == -1
    assert not sweep.stopped()
    attempt = sweep.attempt(0).read()
    assert (attempt.status, attempt.message[:11]) == (Status.WAITING, "out of time")
    submitit[:] = [RuntimeError("Job not requeued because: timed-out too many times.")]
    with pytest.raises(SweepError, match="ended by SIGUSR2: Job not requeued because: timed-out"):
        _run_attempt(sweep, _signalled(signal.SIGUSR2))
    attempt = sweep.attempt(0).read()
    assert (attempt.status, attempt.exit_code) == (Status.KILLED, 140)
    assert attempt.message.endswith("timed-out too many times.")
    assert _run_attempt(sweep, lambda trial: 0.5) == 0.5
    assert sweep.attempt(0).read().status is Status.FINISHED


def test_a_job_that_slurm_preempts_leaves_no_result(
    sweep: SweepDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    with pytest.raises(SystemExit) as raised:
        _run_attempt(sweep, _signalled(signal.SIGTERM))
    assert raised.value.code == 143
    assert sweep.attempt(0).read().status is Status.KILLED
    assert _run_attempt(sweep, lambda trial: 0.5) == 0.5


def test_only_jobs_of_our_sweepers_have_an_attempt() -> None:
    def job_with(target: str, mode: RunMode) -> Job | None:
        sweep, job = {"dir": "d"}, {"num": 3}
        given = {"sweeper": {"_target_": target}, "sweep": sweep, "job": job, "mode": mode}
        return job_of(OmegaConf.create(given))

    ours = "hydra_plugins.runner_sweepers.grid.GridSweeper"
    job = job_with(ours, RunMode.MULTIRUN)
    assert job is not None
    assert job.file.path == Path("d/trials/0003.json")
    assert job_with(ours, RunMode.RUN) is None
    theirs = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
    assert job_with(theirs, RunMode.MULTIRUN) is None


def test_a_trial_elsewhere_ends_when_it_is_cancelled_by_no_more_than_one_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.sweeps.job._POLL_SECONDS", 0.01)
    file = AttemptFile(tmp_path / "0000.json")
    file.cancel()
    attempt = Attempt(0, sweeper="elsewhere:1")
    with (
        Interruption().handled() as interruption,
        pytest.raises(InterruptedRunError, match="ended by SIGTERM"),
        terminate_on_cancel(file, attempt, interruption),
    ):
        time.sleep(60)
    with Interruption().handled() as interruption:
        with interruption.deferred(), terminate_on_cancel(file, attempt, interruption):
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.2)  # A second signal would raise here.
        with pytest.raises(InterruptedRunError, match="ended by SIGINT"):
            interruption.check()


def test_the_signal_to_requeue_is_submitits_where_it_handles_one() -> None:
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        preempted = {"SUBMITIT_EXECUTOR": "slurm", "SUBMITIT_PREEMPT_SIGNAL": "USR1"}
        assert requeue_signals(preempted) == (signal.SIGUSR1,)
        assert requeue_signals({"SUBMITIT_PREEMPT_SIGNAL": "USR1"}) == ()
        # No handler: the process of a sweep that such a job started.
        assert requeue_signals({"SUBMITIT_EXECUTOR": "slurm"}) == ()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert may_be_requeued({"SUBMITIT_EXECUTOR": "slurm"})
    assert not may_be_requeued({"SUBMITIT_EXECUTOR": "local"})
    assert not may_be_requeued({})


def test_evaluations_are_reported_until_one_prunes() -> None:
    reported: list[int] = []

    def report(metrics: Mapping[str, float], step: int) -> bool:
        reported.append(step)
        return metrics["loss"] > 1

    trial, alone = Trial("sweep", {}, report), Trial("sweep", {})
    trial.evaluated({"loss": 0.5}, 10)
    trial.check(0.5)
    for watch in (trial, alone):
        watch.evaluated({"loss": 2.0}, 20)
        watch.evaluated({"loss": 2.0}, 30)
    assert reported == [10, 20]
    with pytest.raises(PrunedRunError, match=r"^pruned at step 20$"):
        trial.check(0.5)
    alone.check(0.5)


def test_a_trial_judges_its_objective_and_has_a_name_that_stays_when_all_is_moved(
    tmp_path: Path,
) -> None:
    trial = Trial(str(tmp_path / "runs" / "sweeps" / "001"), {}, number=3)
    assert trial.name(tmp_path / "runs" / "tiny") == "../sweeps/001:3"
    trial.check(0.5)
    with pytest.raises(SweepError, match=r"^the objective is nan$"):
        trial.check(NAN)
