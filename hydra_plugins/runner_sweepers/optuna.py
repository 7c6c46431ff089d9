"""`hydra/sweeper: optuna`, a search with Optuna."""

from __future__ import annotations

from hydra_plugins.runner_sweepers import LazySweeper


class OptunaSweeper(LazySweeper):
    """See `runner.sweeps.optuna_sweeper.OptunaSweeper`."""

    module = "runner.sweeps.optuna_sweeper"
    extra = "optuna"
