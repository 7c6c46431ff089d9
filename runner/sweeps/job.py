"""Carries out one attempt at a trial, in whatever process the launcher has chosen."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.types import RunMode
from omegaconf import OmegaConf

from runner.errors import (
    InterruptedRunError,
    Problem,
    PrunedRunError,
    RunInUseError,
    RunnerError,
    SweepError,
)
from runner.runs.run_directory import RunDirectory
from runner.sweeps.attempt import Attempt, AttemptFile, TrialStatus
from runner.sweeps.slurm import may_be_requeued, requeue_signals
from runner.sweeps.sweep_directory import SweepDirectory
from runner.sweeps.trial import Report, Trial
from runner.system.lifeline import at_work
from runner.system.locks import this_process
from runner.system.signals import Interruption

PLUGINS = "hydra_plugins.runner_sweepers."
"""Where the sweepers are that write attempts for their jobs."""

Train = Callable[[Trial], float | None]

_NAN = "the objective is nan"


@dataclass(frozen=True)
class Job:
    """A job of Hydra's that is an attempt at a trial.

    Attributes:
      directory: the sweep's.
      file: the attempt's.
      storage: where the study is, as the sweeper's configuration has it. It may hold a password,
        which the attempt's file must not.
    """

    directory: SweepDirectory
    file: AttemptFile
    storage: Any = None


def job_of(config: Any) -> Job | None:
    """Returns what the present job of Hydra's is, if it is one of our sweepers'.

    Args:
      config: the value of `HydraConfig.get()`.
    """
    target = str(config.sweeper.get("_target_", ""))
    if config.mode is not RunMode.MULTIRUN or not target.startswith(PLUGINS):
        return None
    directory = SweepDirectory(Path(config.sweep.dir))
    storage = config.sweeper.get("storage")
    if OmegaConf.is_config(storage):
        storage = OmegaConf.to_container(storage, resolve=True)
    return Job(directory, directory.attempt(int(config.job.num)), storage)


@dataclass(frozen=True)
class _Outcome:
    """How an attempt ended.

    Attributes:
      status: as the attempt's file has it.
      message: why it is not FINISHED.
      exit_code: 0 where nothing failed.
      objective: the trial's; None without an evaluation.
      ended_by: the signal, if one ended it.
    """

    status: TrialStatus
    message: str = ""
    exit_code: int = 0
    objective: float | None = None
    ended_by: InterruptedRunError | None = None


def carry_out(job: Job, train: Train) -> float | None:
    """Runs an attempt and records what became of it.

    Args:
      job: the attempt.
      train: does the work and returns the objective.

    Returns:
      The objective; None where there is none, or the attempt is not to be started any more.

    Raises:
      SweepError: with the message of whatever went wrong, which other processes can be told.
      SystemExit: after a signal to the process that sweeps, or to a job that is started again.
    """
    requeueing = requeue_signals(os.environ)
    interruption = Interruption(further=requeueing)
    # Only training is cut short by a signal; what it has come to is recorded in any case.
    with interruption.handled(), interruption.deferred(), job.file.lock:
        attempt = job.file.read()
        with at_work(attempt.sweeper):
            outcome = _outcome(job, attempt, train, interruption)
    if attempt.sweeper == this_process():
        _end_with_sweep(outcome, interruption)
    if outcome.ended_by is not None and not job.file.called_off():
        for number in filter(interruption.has_come, requeueing):
            outcome = _requeued(job.file, outcome, number)
    if not outcome.exit_code:
        return outcome.objective
    name = " ".join(f"{key}={value}" for key, value in attempt.values.items())
    print(f"runner: trial {attempt.trial} {name} failed: {outcome.message}", file=sys.stderr)
    if outcome.ended_by is None:
        job.directory.failed(last=attempt.last)
    if outcome.ended_by is not None and may_be_requeued(os.environ) and not job.file.called_off():
        # Without a result of the job, its launcher waits for what Slurm starts again.
        raise SystemExit(outcome.exit_code) from outcome.ended_by
    raise SweepError(Problem(outcome.message), outcome.exit_code)


def _outcome(job: Job, attempt: Attempt, train: Train, interruption: Interruption) -> _Outcome:
    """Trains, where that is still wanted, and records how it ended."""
    # RUNNING with a free lock died, and KILLED was interrupted; the launcher starts it again.
    startable = (TrialStatus.WAITING, TrialStatus.RUNNING, TrialStatus.KILLED)
    if attempt.over or attempt.status not in startable:
        return _Outcome(attempt.status)
    stopped = job.directory.stopped() or job.directory.held()
    if stopped or job.file.called_off() or interruption.received():
        if attempt.status is TrialStatus.WAITING:
            job.file.update(status=TrialStatus.SKIPPED, message="the sweep stopped before it")
        return _Outcome(attempt.status)
    # Whoever dies without a word leaves this behind, and the lock free.
    job.file.update(status=TrialStatus.RUNNING, message="", process=this_process())
    trial = Trial(
        str(job.directory.path),
        attempt.values,
        number=attempt.trial,
        starting=lambda run_dir: job.file.update(run_dir=str(run_dir.absolute())),
    )
    with heeding_orders(job.file, attempt, interruption):
        outcome = _trained(job, attempt, trial, train, interruption)
    job.file.update(
        status=outcome.status,
        objective=outcome.objective,
        metrics=_best_metrics(trial.run_dir),
        curve=_curve(attempt, trial),
        message=outcome.message,
        exit_code=outcome.exit_code,
    )
    return outcome


def _trained(
    job: Job, attempt: Attempt, trial: Trial, train: Train, interruption: Interruption
) -> _Outcome:
    try:
        with interruption.prompt(), _working_directory_kept():
            trial.report = _report(job, attempt)
            objective = _train_when_free(trial, train)
        if objective is not None and math.isnan(objective):
            return _Outcome(TrialStatus.FAILED, _NAN, 1, objective)
        return _Outcome(TrialStatus.FINISHED, objective=objective)
    except PrunedRunError as error:
        outcome = _Outcome(TrialStatus.PRUNED, str(error))
    except InterruptedRunError as error:
        state = error.problems[0].state
        outcome = _Outcome(TrialStatus.KILLED, state, error.exit_code, ended_by=error)
    except RunnerError as error:
        outcome = _Outcome(TrialStatus.FAILED, str(error), error.exit_code)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is told, and the sweep goes on
        outcome = _Outcome(TrialStatus.FAILED, f"{type(error).__name__}: {error}", 1)
        traceback.print_exc()
    objective = _recorded_objective(trial.run_dir)
    if outcome.status is TrialStatus.FAILED and objective is not None and math.isnan(objective):
        outcome = replace(outcome, message=_NAN)  # A cluster's chief has told its exit code alone.
    return replace(outcome, objective=objective)


@contextmanager
def _working_directory_kept() -> Iterator[None]:
    """Goes back to the working directory: further trials of this process have relative paths."""
    before = Path.cwd()
    try:
        yield
    finally:
        os.chdir(before)


def _end_with_sweep(outcome: _Outcome, interruption: Interruption) -> None:
    """Ends the sweep after a signal: Hydra would go on to the next trial after an Exception.

    Raises:
      SystemExit: a signal has come, to the trial or beside it.
    """
    try:
        if outcome.ended_by is not None:
            raise outcome.ended_by
        interruption.check()
    except InterruptedRunError as error:
        raise SystemExit(error.exit_code) from error


def _requeued(file: AttemptFile, outcome: _Outcome, number: signal.Signals) -> _Outcome:
    """Has submitit start the job again; returns the outcome where it does not.

    Raises:
      SystemExit: submitit's; another process goes on with the same attempt.
    """
    file.update(status=TrialStatus.WAITING, message="out of time, to be started again")
    try:
        signal.raise_signal(number)  # For submitit's handler, now that the trial is saved.
    except Exception as error:  # noqa: BLE001 - submitit's, after too many times
        outcome = replace(outcome, message=f"{outcome.message}: {error}")
    file.update(status=outcome.status, message=outcome.message)
    return outcome


def _train_when_free(trial: Trial, train: Train) -> float | None:
    """Trains, after a trial that runs beside this one with the same fingerprint."""
    while True:
        try:
            return train(trial)
        except RunInUseError as error:
            print(f"{error.path} is in use; waiting for that")
            RunDirectory(error.path).wait()


def _curve(attempt: Attempt, trial: Trial) -> list[tuple[int, float]]:
    """Returns the evaluations of the objective, those of the run before it resumed included."""
    name = attempt.metric.removeprefix("validation/")
    return sorted((step, metrics[name]) for step, metrics in trial.curve.items() if name in metrics)


def _recorded_objective(run_dir: Path | None) -> float | None:
    record = RunDirectory(run_dir).read() if run_dir is not None else None
    return None if record is None else record.objective


def _best_metrics(run_dir: Path | None) -> Mapping[str, float]:
    if run_dir is None:
        return {}
    record = RunDirectory(run_dir).best_record
    if not record.is_file():
        return {}
    content: dict[str, Any] = json.loads(record.read_text())
    return dict(content["metrics"])


def _report(job: Job, attempt: Attempt) -> Report | None:
    if attempt.study is None:
        return None
    # Optuna is an extra, imported only where it is used.
    from runner.sweeps.reporting import Reporter

    return Reporter(job.directory.path, job.storage, attempt.study)


_LOOK_SECONDS = 0.5


@contextmanager
def heeding_orders(
    file: AttemptFile, attempt: Attempt, interruption: Interruption
) -> Iterator[None]:
    """Ends what is inside as a signal would, once the sweeping process calls the attempt off.

    That process may be on another host, and where both have a terminal in common, a signal has
    come already, and a second one would not wait for the last step to be saved.
    """
    if attempt.sweeper == this_process():
        yield
        return
    file.await_orders()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_LOOK_SECONDS):
            if file.called_off():
                if not interruption.noticed():
                    os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
