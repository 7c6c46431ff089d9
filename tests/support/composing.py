"""Sets up Hydra as it is while `python -m runner +experiment=tiny` runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig

from runner.config.composition import register

CONF = Path(__file__).resolve().parents[2] / "conf"
TINY_CONF = Path(__file__).parents[1] / "samples" / "conf"


@contextmanager
def composing(folder: Path) -> Iterator[Path]:
    """Composes from a copy, made in `folder`, of the shipped and the tiny configs; gives it."""
    shutil.copytree(CONF, folder, dirs_exist_ok=True)
    shutil.copytree(TINY_CONF, folder, dirs_exist_ok=True)
    register()
    before = HydraConfig.instance().cfg
    with initialize_config_dir(str(folder), version_base="1.3"):
        running = compose("config", ["+experiment=tiny"], return_hydra_config=True)
        HydraConfig.instance().set_config(running)
        yield folder
    HydraConfig.instance().cfg = before
