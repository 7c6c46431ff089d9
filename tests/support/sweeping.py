"""A launcher in this process, whose trials are functions of their overrides and may be killed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from runner.config.choices import Goal, Resume
from runner.errors import PrunedRunError, SweepError
from runner.runs.resumption import ResumeCriteria, claim_run
from runner.runs.run_directory import RunRecord
from runner.sweeps.job import Job, Trial, run_attempt
from runner.sweeps.objectives import Objective
from runner.sweeps.sweep_directory import Attempt, SweepDirectory
from runner.system.status import Status
from runner.tracking.journal import Journal, Metrics
from runner.tracking.tracking_directory import TrackingDirectory

LOSS = Objective("validation/loss", Goal.minimize)
ACCURACY = Objective("validation/accuracy", Goal.maximize)


def finished(number: int, loss: float | None, **changes: Any) -> Attempt:
    """Returns an attempt that has finished with a loss and an accuracy, with fields changed."""
    attributes = {
        "values": {"seed": str(number)},
        "metrics": {} if loss is None else {"loss": loss, "accuracy": 1 - loss},
        "objective": loss,
        "status": Status.FINISHED,
        "run_dir": f"runs/tiny/{number:03d}",
    }
    return Attempt(number, **{**attributes, **changes})


# What a trial does, by its overrides: the metrics of each of its evaluations.
Work = Callable[[Sequence[str]], Sequence[Mapping[str, float]]]


def record_evaluation(run_dir: Path, metrics: Mapping[str, float], step: int) -> None:
    """Records an evaluation in the journal of a run."""
    journal = Journal(TrackingDirectory(run_dir).journal)
    values = {f"validation/{name}": value for name, value in metrics.items()}
    journal.append(Metrics(values, step, 0))
    journal.close()


class Died(BaseException):
    """A trial's process ends without a word."""


class Killed(BaseException):
    """The process that sweeps ends without a word."""


def easy(overrides: Sequence[str]) -> Sequence[Mapping[str, float]]:
    """Finishes."""
    return [{"loss": 1.0}]


class FakeLauncher:
    """Runs trials in turn; the death of one process ends the trial after it too, as joblib's does.

    `launched` are the overrides of the trials that were launched together, each time; `started`
    those of all trials that were started, in order.
    """

    def __init__(
        self,
        directory: SweepDirectory,
        work: Work = easy,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory, self.work = directory, work
        self.settings = {} if settings is None else settings
        self.launched: list[list[str]] = []
        self.started: list[str] = []

    def __call__(self, overrides: Sequence[Sequence[str]], first: int) -> None:
        self.launched.append([" ".join(trial_overrides) for trial_overrides in overrides])
        for number, trial_overrides in enumerate(overrides, first):
            job = Job(self.directory, self.directory.attempt(number), self.settings)
            try:
                with contextlib.suppress(SweepError):
                    run_attempt(job, partial(self._train, trial_overrides))
            except Died as error:
                for started in range(number + 1, min(number + 2, first + len(overrides))):
                    self.directory.attempt(started).update(status=Status.RUNNING)
                raise RuntimeError("a worker was terminated") from error

    def _train(self, overrides: Sequence[str], trial: Trial) -> float:
        self.started.append(" ".join(overrides))
        container: Path = self.directory.path / "runs"
        record = RunRecord("tiny", str(overrides), Status.RUNNING, {}, trial=trial.name(container))
        run = claim_run(ResumeCriteria(container, record, Resume.auto)).directory
        status = Status.FAILED
        try:
            run.best.mkdir(exist_ok=True)
            trial.started(run.path)
            best: dict[str, float] = {"loss": float("inf")}
            for step, metrics in enumerate(self.work(overrides)):
                best = min(dict(metrics), best, key=lambda evaluation: evaluation["loss"])
                run.best_record.write_text(json.dumps({"step": step, "metrics": best}))
                record_evaluation(run.path, metrics, step)
                trial.evaluated(metrics, step)
                trial.check(0.0)
            status = Status.FINISHED
            return best["loss"]
        except PrunedRunError:
            status = Status.PRUNED
            raise
        finally:
            run.update(status=status)
            run.release()
