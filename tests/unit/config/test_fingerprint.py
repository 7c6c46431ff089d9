"""A run is identified by what decides its result, and by nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.config.choices import Collision, DeviceBatch, Goal, Missing, Mode, Resume
from runner.config.fingerprint import Identity, fingerprint, settings
from runner.config.schema import (
    ClusterConfig,
    DevicesConfig,
    RunConfig,
    ScaffoldConfig,
    TrackingConfig,
    VariablesConfig,
)
from runner.errors import ConfigError
from tests.support.composing import composing
from tests.support.configs import tiny


def config() -> RunConfig:
    scaffold = ScaffoldConfig(VariablesConfig(["cnn/*"]), "experiment:digits_cnn")
    return RunConfig(
        name="x",
        data={"_target_": "a.Data"},
        model={"_target_": "a.Model", "units": 3},
        loss={"_target_": "a.loss"},
        optimizer={"_target_": "a.Adam", "learning_rate": 1e-3},
        scaffolds={"cnn": scaffold, "lstm": ScaffoldConfig(VariablesConfig(["lstm/*"]), "path")},
    )


def identity(changed: RunConfig, source: str = "0123") -> str:
    return fingerprint(settings(changed, lambda name: source))


def change_scaffold(key: str, value: Any) -> Callable[[RunConfig], None]:
    return lambda changed: setattr(changed.scaffolds["cnn"], key, value)


CHANGES: dict[str, Callable[[RunConfig], None]] = {
    "name": lambda c: setattr(c, "name", "y"),
    "seed": lambda c: setattr(c, "seed", 1),
    "model": lambda c: c.model.update(units=4),
    "learning rate": lambda c: c.optimizer.update(learning_rate=1e-2),
    "metrics": lambda c: c.metrics.update(accuracy={"_target_": "a.accuracy"}),
    "hooks": lambda c: c.hooks.update(mine={"_target_": "a.Hook"}),
    "steps": lambda c: setattr(c.train, "steps", 1),
    "goal": lambda c: setattr(c.train, "goal", Goal.maximize),
    "collision": lambda c: setattr(c.restoration, "collision", Collision.first),
    "checkpoint": change_scaffold("checkpoint", "other"),
    "rename": change_scaffold("rename", {"a": "b"}),
    "trainable": change_scaffold("trainable", False),
    "missing": change_scaffold("missing", Missing.init),
    "overrides": change_scaffold("overrides", ["seed=1"]),
    "variables": change_scaffold("variables", VariablesConfig(["*"])),
    "batch of each device": lambda c: setattr(
        c, "devices", DevicesConfig(2, DeviceBatch["per_device"])
    ),
    "order of scaffolds": lambda c: setattr(c, "scaffolds", dict(reversed(c.scaffolds.items()))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_decides_the_result_changes_it(change: str) -> None:
    changed = config()
    CHANGES[change](changed)
    assert identity(changed) != identity(config())


ELSEWHERE: dict[str, Any] = {
    "mode": Mode.evaluate,
    "resume": Resume.never,
    "run_dir": "elsewhere",
    "tracking": TrackingConfig(None),
    "cluster": ClusterConfig(local=True, workers=3),
    "devices": DevicesConfig(count=4),
    "input_fns": {"test": {"_target_": "a.input_fn"}, "serving": {"_target_": "a.receiver_fn"}},
}


@pytest.mark.parametrize("key", ELSEWHERE)
def test_what_does_not_decide_the_result_leaves_it(key: str) -> None:
    changed = config()
    setattr(changed, key, ELSEWHERE[key])
    assert identity(changed) == identity(config())


def test_settings_are_plain_and_survive_json() -> None:
    plain = settings(config(), {"cnn": "0123"}.__getitem__)
    assert json.loads(json.dumps(plain)) == plain
    assert plain["scaffolds"]["cnn"]["checkpoint"] == "experiment:digits_cnn@0123"
    assert plain["scaffolds"]["lstm"]["checkpoint"] == "path"
    assert plain["train"]["goal"] == "minimize"


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with composing(tmp_path_factory.mktemp("conf")) as folder:
        yield folder


def _warm(checkpoint: str | None, **changes: object) -> RunConfig:
    scaffold = ScaffoldConfig(VariablesConfig(["body/*"]), checkpoint)
    return tiny(name="warm", run_dir="runs/warm", scaffolds={"body": scaffold}, **changes)


@pytest.mark.usefixtures("conf")
def test_a_fingerprint_takes_in_the_source() -> None:
    first = _warm("experiment:tiny")
    second = _warm("experiment:tiny")
    second.scaffolds["body"].overrides = ["seed=1"]
    assert Identity(first).fingerprint() == Identity(_warm("experiment:tiny")).fingerprint()
    assert Identity(first).fingerprint() != Identity(second).fingerprint()
    (scaffold,) = Identity(first).settings()["scaffolds"].values()  # type: ignore[attr-defined]
    assert scaffold["checkpoint"].startswith("experiment:tiny@")


@pytest.mark.usefixtures("conf")
def test_a_source_trains_beside_the_run() -> None:
    experiment = Identity(_warm("experiment:tiny", mode=Mode.plan)).experiment("body")
    assert (experiment.name, experiment.run_dir) == ("tiny", "runs/tiny")
    assert (experiment.mode, experiment.resume) == (Mode.train, Resume.auto)


@pytest.mark.usefixtures("conf")
def test_an_experiment_cannot_be_its_own_source() -> None:
    identity = Identity(_warm("experiment:tiny"))
    own = identity.experiment("body")
    with pytest.raises(ConfigError, match="tiny is its own source"):
        Identity(_warm("experiment:tiny"), (own,)).fingerprint()
