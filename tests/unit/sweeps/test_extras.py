from __future__ import annotations

import sys

import pytest

from runner.errors import ConfigError
from runner.sweeps.extras import require_extra, require_launcher


@pytest.mark.parametrize(
    ("module", "setting", "state"),
    [
        ("ray", "hydra/launcher=ray", "hydra/launcher=ray needs Ray"),
        ("optuna", "hydra/sweeper=optuna", "hydra/sweeper=optuna needs Optuna"),
    ],
)
def test_without_a_library_the_message_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, module: str, setting: str, state: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=state) as raised:
        require_extra(module, setting)
    assert f'pip install "runner[{module}]"' in str(raised.value)


@pytest.mark.parametrize(
    ("target", "remedy"),
    [
        ("hydra_plugins.hydra_joblib_launcher.nosuch.Nosuch", 'pip install "runner\\[joblib\\]"'),
        ("hydra_plugins.hydra_submitit_launcher.x.Y", 'pip install "runner\\[slurm\\]"'),
        ("hydra_plugins.other.Launcher", "install its package"),
    ],
)
def test_a_launcher_that_is_not_installed(target: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy) as raised:
        require_launcher(target)
    assert f"hydra.launcher._target_ is {target!r}" in str(raised.value)
    assert "basic_launcher.BasicLauncher" in str(raised.value)
