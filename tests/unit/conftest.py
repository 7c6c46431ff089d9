"""Runs of the tiny experiment, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.tiny.runs import Runs

# The same examples every time, however slow the machine is; a failure is reported as it is shrunk.
settings.register_profile("runner", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("runner")


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """Runs in one folder."""
    from tests.tiny.runs import Runs  # Not every test needs TensorFlow.

    return Runs(tmp_path / "runs")
