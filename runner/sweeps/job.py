"""Carries out one attempt at a trial, in whatever process the launcher has chosen."""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from runner.run_directory import RunDirectory
from runner.sweeps.attempt import Attempt, AttemptFile, TrialStatus, this_process
from runner.sweeps.sweep_directory import SweepDirectory
from runner.sweeps.trial import Report, Trial

PLUGINS = "hydra_plugins.runner_sweepers."
"""Where the sweepers are that write attempts for their jobs."""

Train = Callable[[Trial], float | None]


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


def carry_out(job: Job, train: Train) -> float | None:
    """Runs an attempt and records what became of it.

    Args:
      job: the attempt.
      train: does the work and returns the objective.

    Returns:
      The objective; None where there is none, or the attempt is not to be started any more.

    Raises:
      SweepError: with the message of whatever went wrong, which other processes can be told.
      SystemExit: after a signal to the process that sweeps.
    """
    directory, file = job.directory, job.file
    with file.lock:
        attempt = file.read()
        # RUNNING with a free lock died, and its launcher starts it again: Slurm does so.
        if attempt.status not in (TrialStatus.WAITING, TrialStatus.RUNNING):
            return None
        if directory.stopped():
            file.update(status=TrialStatus.SKIPPED, message="the sweep stopped before it")
            return None
        # Whoever dies without a word leaves this behind, and the lock free.
        file.update(status=TrialStatus.RUNNING)
        report = _report(job, attempt)
        trial = Trial(str(directory.path), attempt.values, report, attempt.trial)
        return _recorded(directory, file, attempt, trial, train)


def _recorded(
    directory: SweepDirectory, file: AttemptFile, attempt: Attempt, trial: Trial, train: Train
) -> float | None:
    objective: float | None = None
    status, problem, code = TrialStatus.FINISHED, "", 0
    interrupted: InterruptedRunError | None = None
    try:
        objective = _train_when_free(trial, train)
        if objective is not None and math.isnan(objective):
            status, problem, code = TrialStatus.FAILED, "the objective is nan", 1
    except PrunedRunError as error:
        status, problem = TrialStatus.PRUNED, str(error)
    except InterruptedRunError as error:
        interrupted = error
        status, problem, code = TrialStatus.KILLED, error.problems[0].state, error.exit_code
    except RunnerError as error:
        status, problem, code = TrialStatus.FAILED, str(error), error.exit_code
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is told, and the sweep goes on
        status, problem, code = TrialStatus.FAILED, f"{type(error).__name__}: {error}", 1
        traceback.print_exc()
    metrics = _best_metrics(trial.run_dir)
    if objective is None and status is not TrialStatus.FINISHED:
        objective = _recorded_objective(trial.run_dir)
    file.update(
        status=status,
        objective=objective,
        metrics=metrics,
        curve=_curve(attempt, trial),
        message=problem,
        exit_code=code,
        run_dir=str(trial.run_dir.absolute()) if trial.run_dir is not None else None,
    )
    if interrupted is not None and attempt.sweeper == this_process():
        # Hydra goes on to the next trial after an Exception, but the signal is for the sweep.
        raise SystemExit(interrupted.exit_code) from interrupted
    if code:
        name = " ".join(f"{key}={value}" for key, value in attempt.values.items())
        print(f"runner: trial {attempt.trial} {name} failed: {problem}", file=sys.stderr)
        if attempt.last and interrupted is None:
            directory.failed()
        raise SweepError(Problem(problem), code)
    return objective


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
