"""Makes the runs of a sweep children of one run in the tracking store."""

from __future__ import annotations

import atexit
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from runner.config import Mode
from runner.interruption import Interruption
from runner.tracking import PARENT_RUN, RunStatus, Tracker, environment_tags, open_store


class ParentRun(Callback):
    """Opens the parent before the first trial and closes it after the last.

    The trials, also those in other processes of this machine, find its id in the environment. A
    sweep that trains nothing has no parent.
    """

    _open: ClassVar[ParentRun | None] = None

    def __init__(self) -> None:
        self._tracker: Tracker | None = None
        self._signals = ExitStack()

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Opens the parent run, in the experiment's name where that is not itself swept over."""
        if config.mode is not Mode.train:
            return
        name, run_name = "sweep", "sweep"
        if not OmegaConf.is_missing(config, "name"):
            name, run_name = str(config.name), f"{config.name} sweep"
        tags = {
            "runner.overrides": " ".join(config.hydra.overrides.task),
            **environment_tags(Path.cwd()),
        }
        self._tracker = open_store(config.tracking.uri).start(name, run_name, tags)
        os.environ[PARENT_RUN] = self._tracker.run_id
        ParentRun._open = self
        # Hydra tells callbacks nothing when a trial's error ends the sweep.
        atexit.register(self._close, RunStatus.FAILED)
        # A SIGTERM outside a trial's own handling would end the process without that.
        self._signals.enter_context(Interruption().handled())

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Closes the parent run."""
        self._close(RunStatus.FINISHED)

    @classmethod
    def interrupted(cls) -> None:
        """Closes the parent run, if one is open, because a signal ends the sweep."""
        if cls._open is not None:
            cls._open._close(RunStatus.KILLED)

    def _close(self, status: RunStatus) -> None:
        if self._tracker is not None:
            tracker, self._tracker = self._tracker, None
            tracker.close(status)
            del os.environ[PARENT_RUN]
            ParentRun._open = None
            self._signals.close()
