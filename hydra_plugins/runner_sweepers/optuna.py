"""`hydra/sweeper: optuna`, found by Hydra here."""

from __future__ import annotations

from runner.sweeps.search_sweep import SearchSweep


class OptunaSweeper(SearchSweep):
    """See `runner.sweeps.search_sweep`."""
