"""Runs of the tiny experiment, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tiny.runs import Runs


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """Runs in one folder."""
    from tests.tiny.runs import Runs  # Not every test needs TensorFlow.

    return Runs(tmp_path / "runs")
