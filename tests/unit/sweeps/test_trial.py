from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from runner.errors import PrunedRunError
from runner.sweeps.trial import Trial


def test_swept_values_are_tags() -> None:
    trial = Trial("sweep", {"seed": "1", "scaffold@scaffolds.cnn": "random"})
    assert trial.tags == {
        "runner.sweep.seed": "1",
        "runner.sweep.scaffold@scaffolds.cnn": "random",
    }


def test_it_learns_its_directory(tmp_path: Path) -> None:
    trial = Trial("sweep", {})
    trial.started(tmp_path)
    assert trial.run_dir == tmp_path


def test_evaluations_are_reported_until_one_prunes() -> None:
    told: list[int] = []

    def report(metrics: Mapping[str, float], step: int) -> bool:
        told.append(step)
        return metrics["loss"] > 1

    trial = Trial("sweep", {}, report)
    trial.evaluated({"loss": 0.5}, 10)
    trial.check()
    assert not trial.pruned
    trial.evaluated({"loss": 2.0}, 20)
    trial.evaluated({"loss": 2.0}, 30)
    assert told == [10, 20]
    assert trial.curve == {10: {"loss": 0.5}, 20: {"loss": 2.0}, 30: {"loss": 2.0}}
    with pytest.raises(PrunedRunError, match=r"^pruned at step 20$"):
        trial.check()


def test_without_a_listener_nothing_is_pruned() -> None:
    trial = Trial("sweep", {})
    trial.evaluated({"loss": 2.0}, 10)
    trial.check()
