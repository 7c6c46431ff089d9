"""Large libraries are imported without garbage collections and without notes."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.errors import RunnerError
from runner.system.imports import LEVEL, without_collections, without_import_notes

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(LEVEL, raising=False)
    yield
    gc.enable()


def test_nothing_is_collected_inside_and_everything_is_exempt_afterwards() -> None:
    before = gc.get_freeze_count()
    with contextlib.suppress(ImportError), without_collections():
        assert not gc.isenabled()
        made: list[list[int]] = [[] for _ in range(1000)]
        raise ImportError("no such library")
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(made)
    gc.disable()
    with without_collections():
        pass
    assert not gc.isenabled()


@pytest.mark.parametrize(
    ("level", "fails", "shown"),
    [
        (None, None, ""),
        (None, ImportError, "a note\n"),
        (None, RunnerError, ""),
        ("0", None, "a note\n"),
        ("3", None, ""),
    ],
)
def test_notes_of_an_import_are_dropped(
    level: str | None,
    fails: type[Exception] | None,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if level is not None:
        monkeypatch.setenv(LEVEL, level)
    with contextlib.suppress(ImportError, RunnerError), without_import_notes():
        os.write(2, b"a note\n")
        if fails is not None:
            raise fails
    os.write(2, b"a warning\n")
    assert capfd.readouterr().err == f"{shown}a warning\n"
    assert os.environ[LEVEL] == (level or "2")


IMPORT = """
import os, sys
from runner.errors import RunnerError
from runner.system.imports import import_tensorflow
import_tensorflow()
import_tensorflow()
print("tensorflow" in sys.modules, "TF_CPP_MIN_LOG_LEVEL" in os.environ)
"""


def test_it_is_imported_without_a_word_and_leaves_no_setting(tmp_path: Path) -> None:
    # Importing the real one takes seconds, and its notes depend on the machine.
    (tmp_path / "tensorflow.py").write_text(
        "import os\nclass config: list_physical_devices = lambda: os.write(2, b'a note')"
    )
    done = subprocess.run(
        [sys.executable, "-c", IMPORT],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("True False\n", "")


@pytest.mark.parametrize("name", ["warm_start", pytest.param("estimator", marks=pytest.mark.soak)])
def test_a_script_prints_nothing_before_its_own_words(name: str) -> None:
    script = f"import runner; runner.{name}; print('first')"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("first\n", "")
