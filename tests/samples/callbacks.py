"""Hydra callbacks that show what a sweep sees."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class ResultsAlive(Callback):
    """Appends to `file`, before each trial, how many results of trials this process still holds."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Writes one line."""
        gc.collect()
        count = sum(isinstance(thing, JobReturn) for thing in gc.get_objects())
        with self.file.open("a") as file:
            file.write(f"{count}\n")


class Returned(Callback):
    """Appends what each successful trial returned to `file`, as JSON lines."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Writes one line."""
        if job_return.status is JobStatus.COMPLETED:
            with self.file.open("a") as file:
                file.write(json.dumps(job_return.return_value) + "\n")
