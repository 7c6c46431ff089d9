"""Fixtures for tests of sweeps: Hydra set up once for a module, and an empty study's tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig

from runner.config.composition import Compose
from runner.sweeps.sweep_directory import SweepDirectory
from tests.support.composing import composing


@pytest.fixture
def directory(tmp_path: Path) -> SweepDirectory:
    """A sweep's directory, of which nothing exists."""
    return SweepDirectory(tmp_path / "sweep")


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    """Composes trials, as a sweep of the tiny experiment does."""
    with composing(tmp_path_factory.mktemp("composed") / "conf"):
        loader = GlobalHydra.instance().config_loader()

        def load(overrides: Sequence[str]) -> DictConfig:
            return loader.load_configuration("config", list(overrides), RunMode.RUN)

        yield load


@pytest.fixture(scope="session")
def empty_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with Optuna's tables, to be copied: making them is most of a test's time."""
    from runner.sweeps.study import open_storage

    folder = tmp_path_factory.mktemp("study")
    open_storage(folder, None)
    return folder / "study.db"
