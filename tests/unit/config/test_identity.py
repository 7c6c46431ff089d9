from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.config.choices import Mode, Resume
from runner.config.fingerprint import Identity, in_scaffold
from runner.config.schema import RunConfig, ScaffoldConfig, VariablesConfig
from runner.errors import ConfigError, Problem
from tests.tiny.composing import composing
from tests.tiny.configs import tiny


@pytest.fixture(autouse=True)
def conf(tmp_path: Path) -> Iterator[Path]:
    with composing(tmp_path / "conf") as folder:
        yield folder


def _warm(checkpoint: str | None, **changes: object) -> RunConfig:
    scaffold = ScaffoldConfig(VariablesConfig(["body/*"]), checkpoint)
    return tiny(name="warm", run_dir="runs/warm", scaffolds={"body": scaffold}, **changes)


def test_a_fingerprint_takes_in_the_source() -> None:
    first = _warm("experiment:tiny")
    second = _warm("experiment:tiny")
    second.scaffolds["body"].overrides = ["seed=1"]
    assert Identity(first).fingerprint() == Identity(_warm("experiment:tiny")).fingerprint()
    assert Identity(first).fingerprint() != Identity(second).fingerprint()
    (scaffold,) = Identity(first).settings()["scaffolds"].values()  # type: ignore[attr-defined]
    assert scaffold["checkpoint"].startswith("experiment:tiny@")


def test_a_source_trains_beside_the_run() -> None:
    experiment = Identity(_warm("experiment:tiny", mode=Mode.plan)).experiment("body")
    assert (experiment.name, experiment.run_dir) == ("tiny", "runs/tiny")
    assert (experiment.mode, experiment.resume) == (Mode.train, Resume.auto)


def test_an_experiment_is_no_source_of_its_own() -> None:
    identity = Identity(_warm("experiment:tiny"))
    own = identity.experiment("body")
    with pytest.raises(ConfigError, match="tiny is a source of its own"):
        Identity(_warm("experiment:tiny"), (own,)).fingerprint()


def test_a_source_that_is_not_valid_is_named() -> None:
    with pytest.raises(ConfigError, match=r"scaffolds\.body\.checkpoint: experiment 'tinny'"):
        Identity(_warm("experiment:tinny")).settings()


def test_a_problem_keeps_all_it_says() -> None:
    problem = in_scaffold("body", Problem("s", "c", "r", ("x",)))
    assert problem == Problem("scaffolds.body.checkpoint: s", "c", "r", ("x",))
