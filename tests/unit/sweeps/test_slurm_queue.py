from __future__ import annotations

import inspect
import logging
from pathlib import Path

import pytest
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher
from submitit import SlurmJob
from submitit.core.utils import DelayedSubmission

from runner.sweeps import slurm
from runner.sweeps.slurm import withdraw


@pytest.fixture
def cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a `scancel` that stands for Slurm's was given, a line for each call."""
    calls = tmp_path / "calls"
    calls.touch()
    command = tmp_path / "bin" / "scancel"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\necho $* >> {calls}\n")
    command.chmod(0o700)
    monkeypatch.setenv("PATH", f"{command.parent}:/usr/bin:/bin")
    return calls


def _submit(folder: str, name: str, number: int) -> None:
    submission = DelayedSubmission(print, ["n=1"], "hydra.sweep.dir", number, "id", {})
    path = SlurmJob[object](folder, name).paths.submitted_pickle
    path.parent.mkdir(parents=True)
    submission.dump(path)


def test_jobs_that_wait_are_cancelled_and_no_others(tmp_path: Path, cancelled: Path) -> None:
    folder = str(tmp_path / "sweep [1]" / ".submitit" / "%j")
    for name, number in (("12_0", 0), ("12_1", 1), ("12_2", 2), ("13", 3)):
        _submit(folder, name, number)
    assert withdraw(folder, {1, 3, 4}) == ["12_1", "13"]
    assert cancelled.read_text() == "12_1\n13\n"
    assert withdraw(str(tmp_path / "nosuch" / "%j"), {1}) == []


def test_what_cannot_be_cancelled_is_told(
    tmp_path: Path, cancelled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = str(tmp_path / "%A_%a")
    _submit(folder, "12_0", 0)
    _submit(folder, "12_1", 1)
    SlurmJob[object](folder, "12_0").paths.submitted_pickle.write_bytes(b"half")
    with caplog.at_level(logging.WARNING):
        assert withdraw(folder, {0, 1}) == ["12_1"]
    assert "The job 12_0 cannot be taken out of the queue" in caplog.text
    (cancelled.parent / "bin" / "scancel").unlink()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert withdraw(folder, {1}) == []
    assert "The job 12_1 cannot be taken out of the queue: FileNotFoundError" in caplog.text


def test_hydras_launcher_submits_the_number_where_it_is_looked_for() -> None:
    names = list(inspect.signature(SlurmLauncher.__call__).parameters)[1:]
    assert names[slurm.JOB_NUMBER] == "job_num"
    assert f"{SlurmLauncher.__module__}.{SlurmLauncher.__name__}" == slurm.LAUNCHER
