from __future__ import annotations

import signal
import sys
from typing import Any

import pytest
from omegaconf import OmegaConf

from hydra_plugins.runner_launchers.ray import RayLauncher
from runner.errors import ConfigError, InterruptedRunError
from runner.system.signals import Interruption

UNUSED: Any = None


class Ray:
    """What a launch of no job needs of Ray."""

    @staticmethod
    def is_initialized() -> bool:
        return False

    @staticmethod
    def init() -> None:
        """Sets a handler, as Ray does."""
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))

    @staticmethod
    def remote(function: Any) -> type[Ray]:
        return Ray

    @staticmethod
    def options(max_retries: int) -> None:
        """Takes the options of the job."""

    @staticmethod
    def wait(references: list[Any], num_returns: int) -> None:
        """Waits for no job."""

    @staticmethod
    def get(references: list[Any]) -> list[Any]:
        return references


def test_ray_is_required_and_leaves_signals_to_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = RayLauncher({}, {})
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'needs Ray[\s\S]*pip install "runner\[ray\]"'):
        launcher.setup(hydra_context=UNUSED, task_function=UNUSED, config=OmegaConf.create())
    monkeypatch.setitem(sys.modules, "ray", Ray)
    launcher.setup(hydra_context=UNUSED, task_function=UNUSED, config=OmegaConf.create())
    with Interruption().handled():
        assert launcher.launch([], 0) == []
        with pytest.raises(InterruptedRunError, match="ended by SIGTERM"):
            signal.raise_signal(signal.SIGTERM)
