"""The shipped configs of launchers name what the installed launchers take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra_plugins.hydra_joblib_launcher.config import JobLibLauncherConf
from hydra_plugins.hydra_submitit_launcher.config import LocalQueueConf, SlurmQueueConf
from omegaconf import OmegaConf
from submitit.local.local import LocalExecutor

from runner.sweeps.extras import require_launcher

FOLDER = Path(__file__).resolve().parents[3] / "conf" / "hydra" / "launcher"
SCHEMAS: dict[str, Any] = {
    "processes": JobLibLauncherConf,
    "slurm": SlurmQueueConf,
    "slurm_local": LocalQueueConf,
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_its_keys_are_those_of_the_launcher(name: str) -> None:
    config: Any = OmegaConf.load(FOLDER / f"{name}.yaml")
    if name == "slurm_local":
        # Of submitit itself, to which the plugin passes what it does not know.
        assert set(config.pop("setup")) == {"trap '' INT"}
        assert "setup" in LocalExecutor._valid_parameters()
    schema = OmegaConf.structured(SCHEMAS[name])
    assert _target(OmegaConf.merge(schema, config)) == _target(schema)


def _target(config: Any) -> str:
    return str(OmegaConf.select(config, "_target_"))


def test_every_launcher_can_be_found() -> None:
    files = sorted(FOLDER.glob("*.yaml"))
    assert len(files) == 4
    for file in files:
        require_launcher(_target(OmegaConf.load(file)))
