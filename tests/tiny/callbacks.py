"""Hydra callbacks that show what a sweep sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig


class Returned(Callback):
    """Appends what each successful trial returned to `file`, as JSON lines."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Writes one line."""
        if job_return.status is JobStatus.COMPLETED:
            with self.file.open("a") as file:
                file.write(json.dumps(job_return.return_value) + "\n")
