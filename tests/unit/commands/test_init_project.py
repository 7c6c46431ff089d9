"""`runner init` creates a working project, and overwrites nothing."""

from __future__ import annotations

import errno
import os
import runpy
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import keras
import pytest

from tests.support.command_line import Command


def test_a_new_project_passes_its_own_test(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = command("init", "my-points")
    assert (outcome.code, outcome.err) == (0, "")
    project = tmp_path / "my-points"
    assert outcome.out.endswith(" --config-dir conf +experiment=first\n")
    for file in project.rglob("*"):
        assert file.is_dir() or "my_project" not in file.read_text(encoding="utf-8")
    assert (project / "my_points" / "model.py").is_file()
    assert len((project / "README.md").read_text(encoding="utf-8").splitlines()) <= 16
    # In this process, which has imported TensorFlow.
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    test = runpy.run_path(str(project / "tests" / "test_experiments.py"))[
        "test_the_second_experiment_starts_from_the_first"
    ]

    def run(arguments: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert arguments[:3] == [sys.executable, "-m", "runner"]
        done = command(*arguments[3:])
        return subprocess.CompletedProcess(arguments, done.code, done.out, done.err)

    monkeypatch.setitem(test.__globals__, "subprocess", types.SimpleNamespace(run=run))
    test(tmp_path)
    exported = command("mode=export", "export.format=keras", f"run_dir={tmp_path}/second/001")
    assert (exported.code, exported.err) == (0, "")
    (file,) = (tmp_path / "second" / "001").glob("*.keras")
    # Nothing of the project is needed to load it.
    assert keras.models.load_model(file).count_params() == 1_251
    assert {path.name for path in project.iterdir()} <= {
        ".gitignore", "README.md", "conf", "my_points", "tests"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "state"),
    [
        ((), "runner init: error: the following arguments are required: FOLDER"),
        (("a", "b c"), "runner init: error: unrecognized arguments: b c"),
        (("--force",), "runner init: error: the following arguments are required: FOLDER"),
        (("1st",), "runner: 1st cannot be the project's folder"),
        (("class",), "runner: class cannot be the project's folder"),
        (("numpy",), "runner: numpy cannot be the project's folder"),
        (("full",), "runner: full exists and is not an empty folder"),
        (("full/file",), "runner: full/file exists and is not an empty folder"),
        (("full/file/below",), "runner: full/file/below cannot be written"),
    ],
)
def test_what_cannot_be_made_is_refused_and_changes_nothing(
    command: Command, tmp_path: Path, arguments: tuple[str, ...], state: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    outcome = command("init", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert state in outcome.err.splitlines()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [each.read_text() for each in files] == ["mine"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_full_disk_leaves_no_part_of_a_project(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    write = Path.write_text

    def full(path: Path, text: str, **settings: Any) -> int:
        if path.suffix == ".py":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text, **settings)

    if exists:
        (tmp_path / "points").mkdir()
    monkeypatch.setattr(Path, "write_text", full)
    outcome = command("init", "points")
    assert outcome.code == 2
    assert "points cannot be written\n  cause: No space left" in outcome.err
    assert list(tmp_path.iterdir()) == ([tmp_path / "points"] if exists else [])
    assert list(tmp_path.rglob("*")) == list(tmp_path.iterdir())


def test_an_empty_folder_is_taken(command: Command, tmp_path: Path) -> None:
    (tmp_path / "points").mkdir()
    assert command("init", "points").code == 0
    assert (tmp_path / "points" / "points" / "data.py").is_file()
