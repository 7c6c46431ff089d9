"""One attempt at a trial, in whatever process the launcher has chosen, and what the run reports."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.types import RunMode

from runner.config.masked_output import masked
from runner.config.spelling import plain_node
from runner.errors import (
    InterruptedRunError,
    Problem,
    PrunedRunError,
    RunnerError,
    SweepError,
    UserCodeError,
)
from runner.runs.run_directory import RunDirectory, when_free
from runner.sweeps.device_sets import take_devices
from runner.sweeps.launchers import may_be_requeued, requeue_signals
from runner.sweeps.sweep_directory import Attempt, AttemptFile, SweepDirectory
from runner.system.lifeline import at_work
from runner.system.locks import this_process
from runner.system.signals import Interruption
from runner.system.status import Status
from runner.tracking.journal import history
from runner.tracking.tracking_directory import TrackingDirectory
from runner.training.context import SWEEP_TAG, TrialWatch

PLUGINS = "hydra_plugins.runner_sweepers."
"""Package of the sweepers that write attempts for their jobs."""

# What a launcher may start. RUNNING with a free lock died, and KILLED was interrupted.
_STARTABLE = (Status.WAITING, Status.RUNNING, Status.KILLED)
_POLL_SECONDS = 0.5

# Takes the metrics of an evaluation and its step; returns whether the trial is to be pruned.
Report = Callable[[Mapping[str, float], int], bool]


class Trial(TrialWatch):
    """The sweep as the run of one of its trials sees it.

    Args:
      parent: directory of the tracked run of the sweep.
      values: swept key -> value.
      report: called with each evaluation; None for no reports.
      number: of the trial in its sweep.
      on_start: called with the run directory.

    Attributes:
      tags: the values as tags.
      pruned: whether the loop is to end because other trials are better.
    """

    def __init__(
        self,
        parent: str,
        values: Mapping[str, str],
        report: Report | None = None,
        *,
        number: int = 0,
        on_start: Callable[[Path], object] = lambda run_dir: None,
    ) -> None:
        self.parent: str = parent
        self.number = number
        self.values = dict(values)
        self.tags = {f"{SWEEP_TAG}.{key}": value for key, value in values.items()}
        self.pruned = False
        self._report, self._on_start = report, on_start
        self._step = 0

    def name(self, container: Path) -> str:
        """Returns what identifies the trial, also where runs and sweeps are moved together."""
        return f"{os.path.relpath(self.parent, container)}:{self.number}"

    def started(self, run_dir: Path) -> None:
        """Takes the run directory."""
        self._on_start(run_dir)

    def evaluated(self, metrics: Mapping[str, float], step: int) -> None:
        """Reports an evaluation, after which the trial may be pruned."""
        if self._report is not None and not self.pruned and self._report(metrics, step):
            self.pruned, self._step = True, step

    def check(self, objective: float) -> None:
        """Raises `PrunedRunError` if the trial is pruned, and `SweepError` if its value is NaN."""
        if self.pruned:
            raise PrunedRunError(Problem(f"pruned at step {self._step}"))
        if math.isnan(objective):
            raise SweepError.of("the objective is nan")


Train = Callable[[Trial], float | None]


@dataclass(frozen=True)
class Job:
    """A Hydra job that is an attempt at a trial.

    Attributes:
      directory: the sweep's.
      file: the attempt's.
      settings: the sweeper's, as configured. They may contain a password, which the attempt's file
        must not.
    """

    directory: SweepDirectory
    file: AttemptFile
    settings: Mapping[str, Any]


def job_of(config: Any) -> Job | None:
    """Returns the job of a `HydraConfig`; None if it is not one of our sweepers'."""
    target = str(config.sweeper.get("_target_", ""))
    if config.mode is not RunMode.MULTIRUN or not target.startswith(PLUGINS):
        return None
    directory = SweepDirectory(Path(config.sweep.dir))
    settings = plain_node(config.sweeper)
    return Job(directory, directory.attempt(int(config.job.num)), settings)


def run_attempt(job: Job, train: Train) -> float | None:
    """Runs an attempt, in which `train` returns the objective, and records how it ended.

    Returns:
      The objective; None without one, or if the attempt must not be started any more.

    Raises:
      SweepError: with the message of whatever went wrong, which every launcher can pass on.
      SystemExit: after a signal to the process that sweeps, or to a job that is started again.
    """
    requeueing = requeue_signals(os.environ)
    interruption = Interruption(further=requeueing)
    signalled = None
    # A signal cuts training short, but never the recording of how it ended.
    with interruption.handled(), interruption.deferred(), job.file.lock:
        attempt = job.file.read()
        starts = _starts(job, attempt, interruption)
        if starts:
            with at_work(attempt.sweeper):
                attempt, signalled = _run(job, attempt, train, interruption)
    if attempt.sweeper == this_process():
        _end_with_sweep(signalled, interruption)
    if not starts:
        return None
    requeueable = signalled is not None and not job.file.cancelled()
    for number in filter(interruption.has_come, requeueing if requeueable else ()):
        attempt = _requeued(job.file, attempt, number)
    if not attempt.exit_code:
        return attempt.objective
    print(f"runner: {attempt} failed: {attempt.message}", file=sys.stderr)
    if signalled is None:
        if attempt.last:
            job.directory.failed()
    elif requeueable and may_be_requeued(os.environ):
        # Without a result of the job, its launcher waits for the one that Slurm starts again.
        raise SystemExit(attempt.exit_code) from signalled
    raise SweepError(Problem(attempt.message), attempt.exit_code)


def _starts(job: Job, attempt: Attempt, interruption: Interruption) -> bool:
    """Returns whether to start an attempt; records it as skipped if the sweep has stopped."""
    if attempt.over or attempt.status not in _STARTABLE:
        return False
    if not (job.directory.stopped() or job.file.cancelled() or interruption.received()):
        return True
    if attempt.status is Status.WAITING:
        job.file.update(status=Status.SKIPPED, message="the sweep stopped before it")
    return False


def _run(
    job: Job, attempt: Attempt, train: Train, interruption: Interruption
) -> tuple[Attempt, InterruptedRunError | None]:
    """Trains, and returns the attempt as recorded and the error of the signal that ended it."""
    # A process that is killed leaves RUNNING behind, and the lock free.
    job.file.update(status=Status.RUNNING, message="", process=this_process())
    with terminate_on_cancel(job.file, attempt, interruption):
        status, message, exit_code = Status.FINISHED, "", 0
        objective, signalled = None, None
        try:
            with interruption.interruptible():
                if attempt.device_sets:
                    devices = take_devices(job.directory.devices, attempt.device_sets)
                    job.file.update(devices=devices)
                trial = Trial(
                    str(job.directory.path),
                    attempt.values,
                    _report(job, attempt),
                    number=attempt.trial,
                    on_start=lambda run_dir: job.file.update(run_dir=str(run_dir.absolute())),
                )
                # Without locks between hosts, an earlier process may still train it.
                objective = when_free(lambda: train(trial), print)
        except PrunedRunError as error:
            status, message = Status.PRUNED, str(error)
        except InterruptedRunError as error:
            status, message, exit_code = Status.KILLED, error.problems[0].state, error.exit_code
            signalled = error
        except RunnerError as error:
            status, message, exit_code = Status.FAILED, str(error), error.exit_code
            if isinstance(error, UserCodeError):
                print(error.details, file=sys.stderr)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - recorded; the sweep continues
            status, message, exit_code = Status.FAILED, f"{type(error).__name__}: {error}", 1
            traceback.print_exc()
    run_dir = job.file.read().run_dir
    run = None if run_dir is None else RunDirectory(Path(run_dir))
    record, best = (run.read(), run.best_evaluation()) if run else (None, None)
    if status is not Status.FINISHED:
        objective = None if record is None else record.objective
    attempt = job.file.update(
        status=status,
        objective=objective,
        metrics=best[1] if best else {},
        curve=[] if run is None else _curve(attempt.metric, run),
        message=masked(message),
        exit_code=exit_code,
    )
    return attempt, signalled


def _curve(metric: str, run: RunDirectory) -> list[tuple[int, float]]:
    """Returns the evaluations of a run by its journal, those before it was resumed included."""
    steps = history(TrackingDirectory(run.path).journal)
    return [(step, values[metric]) for step, values in steps.items() if metric in values]


def _report(job: Job, attempt: Attempt) -> Report | None:
    if attempt.study is None:
        return None
    # Optuna is an optional extra.
    from runner.sweeps.study import Reporter

    return Reporter(job.directory.path, job.settings, attempt)


def _end_with_sweep(signalled: InterruptedRunError | None, interruption: Interruption) -> None:
    """Ends the sweep after a signal: after an Exception, Hydra would start the next trial.

    Raises:
      SystemExit: a signal has come, during the trial or outside it.
    """
    try:
        if signalled is not None:
            raise signalled
        interruption.check()
    except InterruptedRunError as error:
        raise SystemExit(error.exit_code) from error


@contextmanager
def terminate_on_cancel(
    file: AttemptFile, attempt: Attempt, interruption: Interruption
) -> Iterator[None]:
    """Inside the block, ends this process as SIGTERM does once the sweep cancels the attempt.

    The sweep may be on another host. Where it shares a terminal with this process, a signal has
    come already, and a second one would not wait for the last step to be saved.
    """
    if attempt.sweeper == this_process():
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_SECONDS):
            if file.cancelled():
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


def _requeued(file: AttemptFile, attempt: Attempt, number: signal.Signals) -> Attempt:
    """Has submitit requeue the job; returns the attempt where it does not.

    Raises:
      SystemExit: submitit's; another process resumes the same attempt.
    """
    message = attempt.message
    file.update(status=Status.WAITING, message="out of time, to be started again")
    try:
        signal.raise_signal(number)  # For submitit's handler, now that the trial is saved.
    except Exception as error:  # noqa: BLE001 - submitit's, after too many timeouts
        message = f"{message}: {error}"
    return file.update(status=attempt.status, message=message)
