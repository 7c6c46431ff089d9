"""Hides how older versions of MLflow differ from the newest, by one function for each difference.

A function is needless once its versions are no longer supported. Importing this imports no MLflow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING
from unittest.mock import patch

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric


def installed() -> tuple[int, ...]:
    """Returns the first two numbers of MLflow's version, without importing it."""
    return tuple(map(int, version("mlflow").split(".")[:2]))


def unquotes_databases() -> bool:
    """Whether `%3F` in the path of an SQLite database is a question mark.

    So it is since SQLAlchemy 2.1, by which MLflow opens databases; before, such a path cannot be
    written.
    """
    return tuple(map(int, version("sqlalchemy").split(".")[:2])) >= (2, 1)


def records_load_of_any_store() -> bool:
    """Whether the load of a machine can be recorded.

    MLflow 3.0 to 3.6 record it in the store of the process alone, and here one process serves many.
    """
    return installed() >= (3, 7)


@contextmanager
def unchanged_logging() -> Iterator[None]:
    """Opens a database in the block without changing the log of the process.

    MLflow 3.0 to 3.6 replaces the handlers of the root logger when it does.
    """
    with patch("logging.config.fileConfig"):
        yield


def without_stored_nans(
    client: MlflowClient, run_id: str, metrics: Sequence[Metric]
) -> list[Metric]:
    """Returns the metrics without those that are NaN and that a run has already.

    MLflow 3.0 to 3.15, also as a server, refuses a batch with them; all other metrics may be
    delivered twice.
    """
    keys = {metric.key for metric in metrics if math.isnan(metric.value)}
    stored = {
        (metric.key, metric.timestamp, metric.step)
        for key in keys
        for metric in client.get_metric_history(run_id, key)
        if math.isnan(metric.value)
    }
    return [
        metric
        for metric in metrics
        if not math.isnan(metric.value) or (metric.key, metric.timestamp, metric.step) not in stored
    ]
