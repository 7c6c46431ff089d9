"""The provenance beside a checkpoint is found, and nothing else is taken for one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.checkpoints.reader import CheckpointSpec
from runner.runs.provenance import origin, provenance_of

FOUND: dict[str, Any] = {"schema": 1, "run": {"run_id": "r1"}, "sources": {}, "variables": {}}


@pytest.mark.parametrize("path", ["model.ckpt-7", "model.npz", "", "saved_model"])
def test_it_is_beside_a_checkpoint_or_in_a_directory(tmp_path: Path, path: str) -> None:
    (tmp_path / "provenance.json").write_text(json.dumps(FOUND))
    assert provenance_of(str(tmp_path / path)) == FOUND


def test_there_may_be_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert provenance_of(str(tmp_path / "model.ckpt-7")) is None
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("{", "is not the provenance of a checkpoint"),
        ("{}", "is not the provenance of a checkpoint"),
        ("[]", "is not the provenance of a checkpoint"),
        ('{"schema": 2}', "has another layout"),
        ('{"schema": 1, "run": 5}', "has another layout"),
    ],
)
def test_a_file_that_no_run_has_written_is_reported_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, warning: str
) -> None:
    (tmp_path / "provenance.json").write_text(text)
    assert provenance_of(str(tmp_path / "model.ckpt-7")) is None
    assert warning in caplog.text


def test_the_writer_is_known_from_it_or_from_the_uri(tmp_path: Path) -> None:
    path = str(tmp_path / "model.npz")
    spec = CheckpointSpec(path, 7, {}, digest="sha256:ab")
    assert origin(path, path, spec).run is None
    assert origin("runs:/r0", path, spec).run == {"run_id": "r0"}
    by_uri = origin("runs:/r0/best", path, spec)
    assert (by_uri.run, by_uri.provenance) == ({"run_id": "r0"}, None)
    (tmp_path / "provenance.json").write_text(json.dumps(FOUND))
    by_file = origin("runs:/r0/best", path, spec)
    assert (by_file.run, by_file.provenance) == ({"run_id": "r1"}, FOUND)
    (tmp_path / "provenance.json").write_text(json.dumps({**FOUND, "run": {"run_id": None}}))
    unnamed = origin("runs:/r1/best", path, spec)
    assert (unnamed.run, unnamed.provenance) == ({"run_id": "r1"}, FOUND)
    assert (by_file.path, by_file.step, by_file.digest) == (path, 7, "sha256:ab")
