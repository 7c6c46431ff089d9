"""The warm start as a callback of `keras.Model.fit`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import keras

from runner.config.schema import RestorationConfig
from runner.restoration.eager import WarmStartPlan, freeze, warm_start

_LOGGER = logging.getLogger(__name__)


class WarmStart(keras.callbacks.Callback):
    """Calls `runner.warm_start` where `fit` begins to train a model.

    It does nothing where the optimizer has made steps: when `keras.callbacks.BackupAndRestore`
    resumes, and in a second `fit`. Variables of a scaffold with `trainable: false` stay untrainable
    even so. Put it after `BackupAndRestore`, or the pretrained checkpoints are read in vain.

    Args:
      scaffolds: see `runner.plan`.
      restoration: see `runner.plan`.

    Attributes:
      plan: what was carried out; None before, and where nothing was to be done.
    """

    def __init__(
        self,
        scaffolds: Any,
        *,
        restoration: RestorationConfig | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.plan: WarmStartPlan | None = None
        self._scaffolds, self._restoration = scaffolds, restoration

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Warm-starts the model, unless it has trained; raises what `runner.warm_start` does."""
        steps = int(self.model.optimizer.iterations)
        if steps:
            freeze(self.model, self._scaffolds, restoration=self._restoration)
            _LOGGER.warning("%s has trained %d steps: no warm start", self.model.name, steps)
            return
        self.plan = warm_start(self.model, self._scaffolds, restoration=self._restoration)
