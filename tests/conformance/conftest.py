from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.goldens import Golden, make


@pytest.fixture(scope="session")
def golden_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("goldens")


@pytest.fixture(scope="session")
def shared_golden(golden_folder: Path) -> Callable[[str], Golden]:
    """Returns a golden by name, made once; tests only read it."""
    goldens: dict[str, Golden] = {}

    def get(name: str) -> Golden:
        if name not in goldens:
            goldens[name] = make(name, golden_folder / name)
        return goldens[name]

    return get
