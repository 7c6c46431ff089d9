from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.config.choices import Resume
from runner.config.schema import RunConfig, ScaffoldConfig
from runner.errors import ConfigError
from runner.runs.run_directory import RunDirectory, RunRecord
from runner.sweeps.checks import check_sources, starts_here
from runner.sweeps.points import ComposedPoint, Point
from runner.system.status import Status
from tests.tiny.configs import tiny


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _config(checkpoint: str | None, **scaffold: Any) -> RunConfig:
    return tiny(
        run_dir="runs/tiny", scaffolds={"body": ScaffoldConfig(checkpoint=checkpoint, **scaffold)}
    )


def _composed(*configs: RunConfig) -> list[ComposedPoint]:
    return [
        ComposedPoint(Point((), {"n": str(number)}), each, f"f{number}")
        for number, each in enumerate(configs)
    ]


def _refused(*configs: RunConfig) -> dict[str, str]:
    with pytest.raises(ConfigError) as raised:
        check_sources(_composed(*configs))
    return {each.state: each.cause for each in raised.value.problems}


def test_what_is_not_there_is_told_with_its_trials(tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", kernel=np.zeros(2))
    (tmp_path / "page.h5").write_text("<html>not found</html>")
    (tmp_path / "empty").mkdir()
    found = _refused(
        _config("good.npz"),
        _config("nosuch/model"),
        _config("page.h5"),
        _config("empty"),
        _config("nosuch/model", trainable=False),
        _config("good.npz", average=["other.npz"]),
    )
    begin = "scaffolds.body.checkpoint:"
    assert found == {
        f"{begin} there is no checkpoint at nosuch/model": (
            "neither a directory nor a prefix (in 2 of 6 trials: n=1; n=4)"
        ),
        f"{begin} page.h5 is not a checkpoint of a known format": (
            "it is an HTML page, as a failed download leaves it (in 1 of 6 trials: n=2)"
        ),
        f"{begin} the directory empty holds no checkpoint": "it is empty (in 1 of 6 trials: n=3)",
        f"{begin} there is no checkpoint at other.npz": (
            "neither a directory nor a prefix (in 1 of 6 trials: n=5)"
        ),
    }


def test_what_takes_no_path_of_this_machine_is_not_looked_for() -> None:
    check_sources(
        _composed(
            _config(None),
            _config("nosuch", optional=True),
            _config("experiment:tiny"),
            _config("models:/nosuch/1"),
            _config("gs://nosuch/model"),
            _config("nosuch", average=["runs:/nosuch/model"]),
        )
    )


def test_a_trial_before_may_save_it() -> None:
    check_sources(_composed(_config(None), _config("runs/tiny/001", which="best")))
    check_sources(_composed(_config("experiment:digits"), _config("runs/digits/001")))
    found = _refused(_config(None), _config("runs/digits/001"))
    assert list(found) == ["scaffolds.body.checkpoint: there is no checkpoint at runs/digits/001"]


def test_a_run_that_has_begun_does_not_read_its_sources_again(tmp_path: Path) -> None:
    begun = RunDirectory(tmp_path / "runs" / "tiny" / "001")
    begun.path.mkdir(parents=True)
    begun.write(RunRecord("tiny", "f0", Status.FINISHED, {}))
    config = _config("nosuch")
    check_sources(_composed(config))
    assert "(in 1 of 2 trials: n=1)" in next(iter(_refused(config, config).values()))
    config.resume = Resume.never
    assert len(_refused(config)) == 1


JOBLIB = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"
SUBMITIT = "hydra_plugins.hydra_submitit_launcher.submitit_launcher"
RAY = "hydra_plugins.runner_launchers.ray.RayLauncher"
LAUNCHERS = [
    ({"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}, True),
    ({"_target_": JOBLIB, "n_jobs": 2}, True),
    ({"_target_": f"{SUBMITIT}.LocalLauncher"}, True),
    ({"_target_": f"{SUBMITIT}.SlurmLauncher"}, False),
    ({"_target_": RAY, "init": {"address": None}}, True),
    ({"_target_": RAY, "init": {"address": "auto"}}, False),
    ({"_target_": "mine.Launcher"}, False),
    ({}, False),
]


@pytest.mark.parametrize(("launcher", "here"), LAUNCHERS)
def test_trials_on_other_machines_may_see_other_files(launcher: dict[str, Any], here: bool) -> None:
    assert starts_here(launcher) is here
