"""The sweepers that `hydra/sweeper` names; the work is done in `runner.sweeps`.

Hydra instantiates sweepers only from the top-level package `hydra_plugins`, and imports all of it
for every command. So a sweeper's own modules are imported only when a sweep starts.
"""

from __future__ import annotations

import abc
from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class LazySweeper(Sweeper):
    """A sweeper that imports the one that does the work when a sweep starts."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self._sweeper: Sweeper

    @abc.abstractmethod
    def sweeper(self) -> Sweeper:
        """Returns the sweeper that does the work."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Passes on what Hydra passes."""
        self._sweeper = self.sweeper()
        self._sweeper.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> Any:
        """Sweeps; raises what `runner.sweeps.sweeper.RunnerSweeper.sweep` raises."""
        return self._sweeper.sweep(arguments)
