"""`hydra/sweeper: grid`, over every combination of the swept values."""

from __future__ import annotations

from hydra_plugins.runner_sweepers import LazySweeper


class GridSweeper(LazySweeper):
    """See `runner.sweeps.grid_sweeper.GridSweeper`."""

    module = "runner.sweeps.grid_sweeper"
