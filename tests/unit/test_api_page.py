"""The page of the Python API is read as a file, and is complete."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import runner
import runner.inputs

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_page", ROOT / "docs" / "api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_would_be_made_now(script: ModuleType) -> None:
    assert script.page() == PAGE, "run: python docs/api.py > docs/reference/api.md"


def test_the_page_names_everything_public() -> None:
    names = [*runner.__all__, *runner.inputs.__all__]
    assert [name for name in names if name not in PAGE] == []
    for argument in (
        "train_batches",
        "replay",
        "directory",
        "validation_part",
        "print_next_commands",
    ):
        assert f"- `{argument}`: " in PAGE
