from __future__ import annotations

import sys
from typing import Any

import pytest
from omegaconf import OmegaConf

from runner.errors import ConfigError
from runner.sweeps.ray_launch import RayLaunch, require_ray


def test_without_ray_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="hydra/launcher=ray needs Ray") as raised:
        require_ray()
    assert 'pip install "runner[ray]"' in str(raised.value)
    launcher = RayLaunch({}, {})
    unused: Any = None
    with pytest.raises(ConfigError, match="needs Ray"):
        launcher.setup(hydra_context=unused, task_function=unused, config=OmegaConf.create())


def test_it_is_set_up_first() -> None:
    with pytest.raises(RuntimeError, match="setup has not been called"):
        RayLaunch({}, OmegaConf.create({"num_cpus": 1})).launch([], 0)
