"""A run whose disk is full for a time ends as if it had not been."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.runs.saved_checkpoints import state

from .cases import MakeCase, assert_same

# Full from step 21 to 41: two checkpoints, an evaluation and the journal find no room.
ARGUMENTS = (
    "+experiment=tiny",
    "train.steps=60",
    "train.log_every=3",
    "train.evaluate_every=15",
    "train.checkpoint_every=10",
    "+model.ballast=100000",
    "+hooks.fill={_target_: tests.tiny.hooks.FillDisk, folder: runs, step: 21, until: 41}",
    "tracking.close_seconds=60",
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB, for `runs`."""
    place = tmp_path / "case" / "runs"
    place.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs rights that this process does not have")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_costs_saves_and_nothing_else(make_case: MakeCase) -> None:
    twin, case = make_case("twin", *ARGUMENTS), make_case("case", *ARGUMENTS)
    assert twin.code() == 0, twin.output()
    case.marker("small").touch()
    assert case.code() == 0, case.output()
    for step in (30, 40):
        assert f"warning: step {step} is not saved" in case.output()
    assert "No space left on device" in case.output()
    assert state(case.directory("tiny/001").checkpoints) == ["model.ckpt-50", "model.ckpt-60"]
    assert_same(twin, case, "tiny")
