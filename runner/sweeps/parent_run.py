"""Makes the runs of a sweep children of one run in the tracking store."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from runner.tracking import PARENT_RUN, RunStatus, Tracker, environment_tags, open_store


class ParentRun(Callback):
    """Opens the parent before the first trial and closes it after the last.

    The trials, also those in other processes of this machine, find its directory in the
    environment.
    """

    def __init__(self) -> None:
        self._tracker: Tracker | None = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Opens the parent run, in the experiment's name where that is not itself swept over."""
        name = "sweep" if OmegaConf.is_missing(config, "name") else str(config.name)
        tags = {
            "runner.overrides": " ".join(config.hydra.overrides.task),
            **environment_tags(Path.cwd()),
        }
        settings: Any = OmegaConf.to_container(config)
        tracking: Any = OmegaConf.to_object(config.tracking)
        directory = Path(config.hydra.sweep.dir).absolute()
        store = open_store(tracking, settings)
        self._tracker = store.open(directory, name, f"{name} sweep", tags)
        os.environ[PARENT_RUN] = str(directory)
        # Hydra tells callbacks nothing when a trial's error ends the sweep.
        atexit.register(self._close, RunStatus.FAILED)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Closes the parent run."""
        self._close(RunStatus.FINISHED)

    def _close(self, status: RunStatus) -> None:
        if self._tracker is not None:
            self._tracker.close(status)
            self._tracker = None
            del os.environ[PARENT_RUN]
