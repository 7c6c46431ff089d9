"""Reports the evaluations of a trial to its study, and asks the pruner."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import OptunaError
from sqlalchemy.exc import SQLAlchemyError

from runner.config.instantiation import build_target
from runner.errors import ConfigError
from runner.sweeps.study import trial_id
from runner.sweeps.study_storage import open_storage

# What a storage raises while its database is out of reach.
logger = logging.getLogger(__name__)

_OUT_OF_REACH = (OptunaError, SQLAlchemyError, OSError, ConfigError)


class Reporter:
    """Takes the metrics of each evaluation of one trial; says whether the trial is to be pruned.

    While the study is out of reach, the trial goes on and is not pruned.

    Args:
      directory: the sweep's.
      storage: as the sweeper's configuration has it.
      reference: the attempt's `study`: its `name`, the `trial`, its `pruner`, and the `metric`.
    """

    def __init__(self, directory: Path, storage: Any, reference: Mapping[str, Any]) -> None:
        self._directory, self._storage, self._reference = directory, storage, reference
        self._trial: optuna.Trial | None = None
        self._known: Collection[int] = ()

    def __call__(self, metrics: Mapping[str, float], step: int) -> bool:
        """Reports an evaluation."""
        try:
            trial = self._opened()
            if step not in self._known:
                trial.report(metrics[self._reference["metric"]], step)
            return trial.should_prune()
        except _OUT_OF_REACH as error:
            logger.warning(
                "Trial %d goes on, though its study cannot be told of step %d: %s",
                self._reference["trial"],
                step,
                error,
            )
            return False

    def _opened(self) -> optuna.Trial:
        if self._trial is None:
            study, storage = _joined(
                os.getcwd(),  # Of which the path in the storage's URL may be a relative one.
                str(self._directory),
                json.dumps(self._storage),
                self._reference["name"],
                json.dumps(self._reference["pruner"]),
            )
            number = trial_id(study, storage, self._reference["trial"])
            # A resumed trial evaluates some steps again.
            self._known = set(storage.get_trial(number).intermediate_values)
            self._trial = optuna.Trial(study, number)
        return self._trial


# The trials of one process share the connection, and what is read of trials that have ended.
@functools.lru_cache(maxsize=1)
def _joined(
    folder: str, directory: str, storage: str, name: str, pruner: str
) -> tuple[optuna.Study, Any]:
    opened = open_storage(Path(directory), json.loads(storage))
    built = build_target("hydra.sweeper.pruner", json.loads(pruner))
    return optuna.load_study(study_name=name, storage=opened, pruner=built), opened
