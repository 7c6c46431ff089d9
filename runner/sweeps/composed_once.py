"""Composes the configuration of a point once, for its check and for its trial."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig, OmegaConf, flag_override

# Configurations kept from their check to their trial; more of them cost more memory than time.
_KEPT = 64


class ComposedOnce:
    """A config loader that keeps what the checks composed, for launchers of the same process.

    Composing takes about as long as all else that the runner adds to a short trial.

    Args:
      loader: what composes, and what serves all other purposes of a config loader.
    """

    def __init__(self, loader: ConfigLoader) -> None:
        self._loader = loader
        self._kept: OrderedDict[tuple[str, ...], DictConfig] = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def compose(self, master: DictConfig, overrides: Sequence[str]) -> DictConfig:
        """Composes the configuration of a trial, which its launcher may ask for once."""
        config = self._loader.load_sweep_config(master, list(overrides))
        # What a trial overrides of `hydra` itself is left to Hydra.
        if config.hydra.overrides.hydra == master.hydra.overrides.hydra:
            self._kept[tuple(overrides)] = config
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return config

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: Sequence[str]
    ) -> DictConfig:
        """Returns the configuration of a trial in the sweep's directory."""
        config = self._kept.pop(tuple(sweep_overrides), None)
        if config is None:
            return self._loader.load_sweep_config(master_config, list(sweep_overrides))
        hydra = config.hydra
        OmegaConf.set_readonly(hydra, False)
        with flag_override(hydra, "struct", False):
            hydra.sweep.dir = master_config.hydra.sweep.dir
            hydra.overrides.hydra = master_config.hydra.overrides.hydra
        OmegaConf.copy_cache(from_config=master_config, to_config=config)
        return config
