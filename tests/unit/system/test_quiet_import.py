"""Notes on file descriptor 2 are dropped, unless the block fails or the user sets a log level."""

from __future__ import annotations

import os

import pytest

from runner.system.imports import LEVEL, without_import_notes


@pytest.fixture(autouse=True)
def _no_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LEVEL, raising=False)


def test_notes_are_dropped_and_later_ones_kept(capfd: pytest.CaptureFixture[str]) -> None:
    with without_import_notes():
        os.write(2, b"a note\n")
    os.write(2, b"a warning\n")
    assert capfd.readouterr().err == "a warning\n"
    assert os.environ[LEVEL] == "2"


def test_notes_are_shown_when_the_import_fails(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with without_import_notes():
            os.write(2, b"a note\n")
            raise ImportError("no such library")

    with pytest.raises(ImportError, match="no such library"):
        fail()
    assert capfd.readouterr().err == "a note\n"


def test_a_users_own_level_shows_everything(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(LEVEL, "0")
    with without_import_notes():
        os.write(2, b"a note\n")
    assert capfd.readouterr().err == "a note\n"
    assert os.environ[LEVEL] == "0"
