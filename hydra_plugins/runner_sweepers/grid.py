"""`hydra/sweeper: grid`, over every combination of the swept values."""

from __future__ import annotations

from hydra.plugins.sweeper import Sweeper

from hydra_plugins.runner_sweepers import LazySweeper


class GridSweeper(LazySweeper):
    """See `runner.sweeps.grid_sweeper.GridSweeper`."""

    def sweeper(self) -> Sweeper:
        """Returns the sweeper that does the work."""
        from runner.sweeps.grid_sweeper import GridSweeper

        return GridSweeper(**self.settings)
