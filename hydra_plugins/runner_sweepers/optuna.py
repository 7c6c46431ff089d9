"""`hydra/sweeper: optuna`, a search with Optuna."""

from __future__ import annotations

from hydra.plugins.sweeper import Sweeper

from hydra_plugins.runner_sweepers import LazySweeper


class OptunaSweeper(LazySweeper):
    """See `runner.sweeps.optuna_sweeper.OptunaSweeper`."""

    def sweeper(self) -> Sweeper:
        """Returns the sweeper that does the work.

        Raises:
          ConfigError: Optuna is not installed.
        """
        from runner.sweeps.execution import require_extra

        require_extra("optuna", "hydra/sweeper=optuna")
        from runner.sweeps.optuna_sweeper import OptunaSweeper

        return OptunaSweeper(**self.settings)
