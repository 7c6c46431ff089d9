"""A run is named by its folder: its recorded configuration, and what a command may add to it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest
from hydra import compose
from omegaconf import DictConfig, OmegaConf

from runner.config.masking import Mask
from runner.config.schema import ScaffoldConfig, TrackingConfig, VariablesConfig
from runner.config.validation import is_from_run_dir, validate
from runner.errors import ConfigError, RunDirectoryError, RunnerError
from runner.runs.recorded_config import recorded_config
from runner.runs.run_directory import RunDirectory, RunRecord
from runner.system.status import Status
from runner.tracking.tracking_directory import RunIdentity, TrackingDirectory
from tests.support.composing import composing
from tests.support.configs import tiny

STORE = "mysql://me:secret@host/db"
CONFIG = tiny(
    data={
        "_target_": "tests.samples.experiment.Blobs",
        "token": "abcdefgh",
        "auth": ["u", "pw"],
        "seed": 7,
    },
    hooks={"log": {"_target_": "x", "tensors": ["${graph:loss}"], "api_key": "hidden-key"}},
    scaffolds={
        name: ScaffoldConfig(VariablesConfig([f"{name}/*"]), "experiment:tiny")
        for name in ("head", "body")
    },
    tracking=TrackingConfig(STORE),
)


Command = Callable[..., tuple[DictConfig, list[str]]]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Composes the configuration of a command; tests only read it."""
    with composing(tmp_path_factory.mktemp("conf")):
        yield cache(lambda *overrides: (compose("config", list(overrides)), list(overrides)))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    directory = RunDirectory(tmp_path / "runs" / "001")
    directory.path.mkdir(parents=True)
    directory.write(RunRecord("tiny", "0" * 16, Status.KILLED, {}))
    plain = Mask(CONFIG.tracking.mask, asdict(CONFIG)).settings(asdict(CONFIG))
    directory.config.write_text(OmegaConf.to_yaml(OmegaConf.create(plain)))
    TrackingDirectory(directory.path).write_identity(
        RunIdentity("uid", "tiny", "1", stores=(STORE,))
    )
    monkeypatch.chdir(tmp_path)
    return directory


FOLDER = ("mode=evaluate", "run_dir=runs/001")
SECRET = "+data={token: abcdefgh, auth: [u, pw]}"


def test_it_is_the_recorded_configuration_with_what_the_command_may_change(
    run: RunDirectory, command: Command
) -> None:
    given, overrides = command(
        *(*FOLDER, SECRET, "evaluate.which=7", "session.grace_seconds=3", "tracking.uri=other.db")
    )
    assert is_from_run_dir(given)
    config = validate(recorded_config(given, overrides))
    assert config.data == CONFIG.data
    assert (config.model, config.optimizer) == (CONFIG.model, CONFIG.optimizer)
    assert list(config.scaffolds) == ["head", "body"]
    assert config.hooks["log"]["tensors"] == ["${graph:loss}"]
    changed = config.run_dir, config.evaluate.which, config.session.grace_seconds
    assert (*changed, config.tracking.uri) == ("runs/001", "7", 3.0, "other.db")
    assert validate(recorded_config(*command(*FOLDER, SECRET))).tracking.uri == STORE
    data = "predict.data={_target_: mine.noise}"
    predicting = recorded_config(*command("mode=predict", *FOLDER[1:], SECRET, data))
    assert validate(predicting).predict.data == {"_target_": "mine.noise"}
    untracked = validate(recorded_config(*command(*FOLDER, SECRET, "tracking=none")))
    assert untracked.tracking.uri is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((), r"data\.token is a secret, which .* does not hold(.|\n)*'\+data=\{token: \.\.\.\}'"),
        (
            ("+data={token: abcdefgh}",),
            r"data\.auth\.1 is a secret(.|\n)*'\+data=\{auth: \.\.\.\}'",
        ),
        ((SECRET, "seed=3"), r"^seed is given, and runs/001 has a recorded value"),
        (("+data={token: abcdefgh, seed: 1}",), r"^data\.seed is given"),
        ((SECRET, "optimizer=sgd"), "^optimizer is given"),
        ((SECRET, "export.which=scaffolds"), "^which is scaffolds, and runs/001 is a run"),
    ],
)
def test_what_decides_the_result_is_the_runs(
    run: RunDirectory, command: Command, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        recorded_config(*command(*FOLDER, *overrides))


@pytest.mark.parametrize("content", [None, "", "{", "[1]"])
def test_without_its_configuration_a_run_cannot_be_named_by_its_folder(
    run: RunDirectory, command: Command, content: str | None
) -> None:
    run.config.unlink()
    if content is not None:
        run.config.write_text(content)
    with pytest.raises(RunDirectoryError, match=r"runs/001/config\.yaml cannot be used"):
        recorded_config(*command(*FOLDER))


@pytest.mark.parametrize("folder", ["runs", "runs/01"])
def test_the_runs_that_are_there_are_named(
    run: RunDirectory, command: Command, folder: str
) -> None:
    given, overrides = copy.deepcopy(command(*FOLDER))
    given.run_dir = folder
    with pytest.raises(RunnerError, match=f"run_dir is {folder}, which is not a run") as caught:
        recorded_config(given, overrides)
    assert list(caught.value.problems[0].choices) == ["runs/001"]


@pytest.mark.parametrize(
    "overrides",
    [
        ("mode=evaluate",),
        ("run_dir=runs/001",),
        (*FOLDER, "name=tiny"),
        (*FOLDER, "+experiment=tiny"),
    ],
)
def test_a_command_that_names_no_run_or_an_experiment_is_not_by_folder(
    command: Command, overrides: tuple[str, ...]
) -> None:
    assert not is_from_run_dir(command(*overrides)[0])


def test_a_copied_run_does_not_make_the_folder_of_its_store_again(
    run: RunDirectory, command: Command, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    identity = RunIdentity("uid", "tiny", "1", stores=(f"sqlite:///{gone}/mlflow.db",))
    TrackingDirectory(run.path).write_identity(identity)
    with pytest.raises(ConfigError, match="whose folder does not exist any more"):
        recorded_config(*command(*FOLDER, SECRET))
    for choice in ("tracking=none", "tracking.uri=sqlite:///mlflow.db"):
        recorded_config(*command(*FOLDER, SECRET, choice))
    assert not gone.exists()
