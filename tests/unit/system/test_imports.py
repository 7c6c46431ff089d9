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

from runner.system.imports import (
    LEVEL,
    paused_collections,
    without_collections,
    without_import_notes,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(LEVEL, raising=False)
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_inside_and_everything_is_exempt_afterwards() -> None:
    before = gc.get_freeze_count()
    with paused_collections():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == before
    with without_collections():
        assert not gc.isenabled()
        made: list[list[int]] = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(made)


def test_the_collector_is_as_before_after_a_failure_and_where_it_was_off() -> None:
    with contextlib.suppress(ImportError), without_collections():
        raise ImportError("no such library")
    assert gc.isenabled()
    gc.disable()
    with without_collections():
        pass
    assert not gc.isenabled()


def test_notes_are_dropped_and_later_ones_kept(capfd: pytest.CaptureFixture[str]) -> None:
    with without_import_notes():
        os.write(2, b"a note\n")
    os.write(2, b"a warning\n")
    assert capfd.readouterr().err == "a warning\n"
    assert os.environ[LEVEL] == "2"


def test_notes_are_shown_when_the_import_fails(capfd: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(ImportError), without_import_notes():
        os.write(2, b"a note\n")
        raise ImportError("no such library")
    assert capfd.readouterr().err == "a note\n"


def test_a_users_own_level_shows_everything(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(LEVEL, "0")
    with without_import_notes():
        os.write(2, b"a note\n")
    assert capfd.readouterr().err == "a note\n"
    assert os.environ[LEVEL] == "0"


IMPORT = """
import os, sys
from runner.system.imports import import_tensorflow
import_tensorflow()
import_tensorflow()
print("tensorflow" in sys.modules, "TF_CPP_MIN_LOG_LEVEL" in os.environ)
"""


def test_it_is_imported_without_a_word_and_leaves_no_setting(tmp_path: Path) -> None:
    # Importing the real one takes seconds, and its notes depend on the machine.
    (tmp_path / "tensorflow.py").write_text("import os; os.write(2, b'a note')")
    done = subprocess.run(
        [sys.executable, "-c", IMPORT],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("True False\n", "")
