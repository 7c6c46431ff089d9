"""The kinds of Hydra's launchers: where they run trials, and how they lose them."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import cloudpickle  # type: ignore[import-untyped]
import pytest
from hydra.core.plugins import Plugins
from hydra_plugins.hydra_joblib_launcher.config import JobLibLauncherConf
from hydra_plugins.hydra_submitit_launcher.config import LocalQueueConf, SlurmQueueConf
from omegaconf import OmegaConf
from submitit import SlurmJob
from submitit.local.local import LocalExecutor

from hydra_plugins.runner_launchers.ray import RayLauncher
from runner.commands import run_experiment
from runner.errors import ConfigError, InterruptedRunError
from runner.sweeps import launchers
from runner.sweeps.launchers import LauncherKind
from runner.system.signals import Interruption

CONF = Path(__file__).resolve().parents[3] / "conf" / "hydra" / "launcher"
REMOTE_RAY = {"_target_": launchers.RAY, "init": {"address": "auto"}}
# Launcher -> is_local and crashes_together.
KINDS: list[tuple[dict[str, Any], tuple[bool, bool]]] = [
    ({"_target_": launchers.SERIAL}, (True, True)),
    ({"_target_": launchers.JOBLIB, "n_jobs": 2}, (True, True)),
    ({"_target_": launchers.SUBMITIT}, (True, False)),
    ({"_target_": launchers.SLURM}, (False, False)),
    ({"_target_": launchers.RAY, "init": {"address": None}}, (True, False)),
    (REMOTE_RAY, (False, False)),
    ({"_target_": "mine.Launcher"}, (False, True)),
    ({}, (False, True)),
]


@pytest.mark.parametrize(("config", "kind"), KINDS)
def test_what_is_known_of_a_launcher(config: dict[str, Any], kind: tuple[bool, bool]) -> None:
    launcher = LauncherKind(config)
    assert (launcher.is_local, launcher.crashes_together) == kind


SCHEMAS: dict[str, Any] = {
    launchers.JOBLIB: JobLibLauncherConf,
    launchers.SLURM: SlurmQueueConf,
    launchers.SUBMITIT: LocalQueueConf,
    launchers.RAY: None,
}


def test_shipped_launchers_are_installed_and_have_the_keys_of_their_configs() -> None:
    configs: dict[str, Any] = {}
    for file in CONF.glob("*.yaml"):
        config: Any = OmegaConf.load(file)
        configs[config.pop("_target_")] = config
    # Of submitit itself, to which the plugin passes what it does not know.
    assert set(configs[launchers.SUBMITIT].pop("setup")) == {"trap '' INT"}
    assert "setup" in LocalExecutor._valid_parameters()
    assert configs.keys() == SCHEMAS.keys()
    for target, config in configs.items():
        LauncherKind({"_target_": target}).require_installed()
        if SCHEMAS[target] is not None:
            schema = OmegaConf.structured(SCHEMAS[target])
            assert OmegaConf.merge(schema, config)._target_ == target


@pytest.mark.parametrize(
    ("target", "remedy"),
    [
        (launchers.SLURM, r'pip install "runner\[slurm\]"'),
        ("hydra_plugins.other.Launcher", "install its package"),
    ],
)
def test_a_launcher_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, target: str, remedy: str
) -> None:
    LauncherKind({"_target_": launchers.SERIAL}).require_installed()
    monkeypatch.delitem(Plugins.instance().class_name_to_class, target, raising=False)
    with pytest.raises(ConfigError, match=remedy) as raised:
        LauncherKind({"_target_": target}).require_installed()
    assert f"hydra.launcher._target_ is {target!r}" in str(raised.value)


def test_launchers_can_send_the_task_to_other_processes() -> None:
    cloudpickle.register_pickle_by_value(run_experiment)
    try:
        assert cloudpickle.dumps(run_experiment._job)
    finally:
        cloudpickle.unregister_pickle_by_value(run_experiment)


@pytest.fixture
def cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records the arguments of a `scancel` in place of Slurm's, a line for each call."""
    calls = tmp_path / "calls"
    calls.touch()
    command = tmp_path / "bin" / "scancel"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\necho $* >> {calls}\n")
    command.chmod(0o700)
    monkeypatch.setenv("PATH", f"{command.parent}:/usr/bin:/bin")
    return calls


def test_jobs_that_wait_in_slurms_queue_are_cancelled(tmp_path: Path, cancelled: Path) -> None:
    folder = tmp_path / "sweep [1]" / ".submitit" / "%j"
    config = {"submitit_folder": str(folder)}
    slurm = LauncherKind(OmegaConf.create({"_target_": launchers.SLURM, **config}))
    slurm.cancel_queued()
    assert cancelled.read_text() == ""
    for name in ("12_0", "12_1", "13"):
        path = SlurmJob[object](str(folder), name).paths.submitted_pickle
        path.parent.mkdir(parents=True)
        path.touch()
    LauncherKind({"_target_": launchers.SUBMITIT, **config}).cancel_queued()
    assert cancelled.read_text() == ""
    slurm.cancel_queued()
    assert cancelled.read_text() == "--quiet --state=PENDING 12_0 12_1 13\n"


def test_ray_is_required_and_leaves_signals_to_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = RayLauncher({}, {})
    context: Any = {"hydra_context": None, "task_function": None, "config": OmegaConf.create()}
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'needs Ray[\s\S]*pip install "runner\[ray\]"'):
        launcher.setup(**context)
    ray = MagicMock()
    ray.is_initialized.return_value = False
    ray.init = lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL)  # As the real one does.
    monkeypatch.setitem(sys.modules, "ray", ray)
    launcher.setup(**context)
    with Interruption().handled():
        launcher.launch([], 0)
        with pytest.raises(InterruptedRunError, match="ended by SIGTERM"):
            signal.raise_signal(signal.SIGTERM)
