"""A run of another format is refused by every command, before anything is changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runner
from runner.config.choices import Mode, Resume
from runner.config.schema import ScaffoldConfig, TrainConfig, VariablesConfig
from runner.errors import RunnerError
from runner.runs.lineage import lineage
from runner.sweeps.sweep_directory import SweepDirectory, open_sweep
from runner.system.run_format import FORMAT
from runner.tracking.delivery import sync
from runner.tracking.tracking_directory import RunIdentity, TrackingDirectory
from runner.training.first_values import verify
from tests.samples.odd import Linear
from tests.support.configs import LINEAR
from tests.support.runs import Runs


def replace_format(file: Path, number: int | None) -> None:
    """Gives a record another format's number, or none."""
    content = json.loads(file.read_text())
    assert content.pop("format") == FORMAT
    file.write_text(json.dumps(content if number is None else {"format": number, **content}))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A finished run, as a version of another format has left it."""
    train = TrainConfig(steps=2, evaluate_every=2, checkpoint_every=2)
    runs = Runs(tmp_path_factory.mktemp("runs"), **LINEAR, train=train)
    runs.run()
    replace_format(runs.directory().path / "run.json", FORMAT + 1)
    return runs


def warm(checkpoint: Path) -> dict[str, ScaffoldConfig]:
    return {"all": ScaffoldConfig(VariablesConfig(["*"]), str(checkpoint))}


Act = Callable[[Runs, Path], object]


def command(**changes: Any) -> Act:
    return lambda runs, _: runs.shown(**changes)


COMMANDS: dict[str, Act] = {
    **{f"resume={resume.value}": command(resume=resume) for resume in Resume},
    **{f"mode={mode.value}": command(mode=mode) for mode in Mode if mode is not Mode.train},
    "run_dir=FOLDER": lambda runs, _: runs.shown(run_dir=str(runs.directory().path)),
    "verify": lambda runs, _: verify(str(runs.directory().path)),
    "lineage": lambda runs, _: lineage(str(runs.directory().path)),
    "a source by its run": lambda runs, folder: runs.shown(
        run_dir=str(folder), scaffolds=warm(runs.directory().path)
    ),
    "a source by its file": lambda runs, folder: runs.shown(
        run_dir=str(folder), scaffolds=warm(runs.directory().checkpoints / "model.ckpt-2")
    ),
    "warm_start": lambda runs, _: runner.warm_start(Linear(), warm(runs.directory().path)),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_it_is_refused_before_anything_is_changed(other: Runs, tmp_path: Path, name: str) -> None:
    before = other.files()
    with pytest.raises(RunnerError, match=rf"run\.json is of format {FORMAT + 1}") as raised:
        COMMANDS[name](other, tmp_path / "new")
    (problem,) = raised.value.problems
    assert problem.cause.endswith(f"this version uses format {FORMAT}")
    assert other.files() == before
    assert not (tmp_path / "new").exists()


def test_a_record_without_a_number_is_of_another_format(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.directory().path.mkdir()
    (runs.directory().path / "run.json").write_text('{"name": "tiny", "fingerprint": "0"}')
    with pytest.raises(RunnerError, match=r"run\.json has no format"):
        runs.directory().read()


@pytest.mark.parametrize("resume", [Resume.auto, Resume.must])
def test_a_sweep_of_another_format_is_refused(tmp_path: Path, resume: Resume) -> None:
    directory = SweepDirectory(tmp_path / "001")
    directory.path.mkdir()
    directory.write({"fingerprint": "0", "overrides": []})
    replace_format(directory.path / "sweep.json", None)
    with pytest.raises(RunnerError, match=r"sweep\.json has no format"):
        open_sweep(tmp_path, "0", resume)
    assert [path.name for path in tmp_path.glob("[0-9]*")] == ["001"]


def test_a_journal_of_another_format_is_not_delivered(tmp_path: Path) -> None:
    directory = TrackingDirectory(tmp_path)
    directory.write_identity(RunIdentity("u", "tiny", "one", stores=("sqlite:///a.db",)))
    replace_format(directory.path / "identity.json", FORMAT + 1)
    with pytest.raises(RunnerError, match=rf"identity\.json is of format {FORMAT + 1}"):
        sync(directory)
