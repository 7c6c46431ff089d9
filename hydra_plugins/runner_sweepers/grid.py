"""`hydra/sweeper: grid`, found by Hydra here."""

from __future__ import annotations

from runner.sweeps.grid_sweep import GridSweep


class GridSweeper(GridSweep):
    """See `runner.sweeps.grid_sweep`."""
