"""A chief tells the sweep how its trial goes, and is told whether it is pruned."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from runner.cluster.trial_link import TRIAL, LinkedTrial, TrialLink, linked_trial
from runner.errors import PrunedRunError
from runner.runs.run_directory import RunDirectory
from runner.sweeps.trial import Trial


def chief_of(link: TrialLink) -> LinkedTrial:
    """The chief's side, in this process."""
    end, value = link.connect()
    chief = linked_trial({TRIAL: value})
    assert chief is not None
    end.detach()  # The chief has the descriptor now.
    return chief


@pytest.fixture
def make() -> Callable[..., Trial]:
    def trial(report: Callable[[Mapping[str, float], int], bool] | None = None) -> Trial:
        return Trial("sweeps/001", {"seed": "3"}, report)

    return trial


def test_a_process_without_the_variable_is_no_trial() -> None:
    assert linked_trial({}) is None


def test_the_sweep_hears_what_the_chiefs_tell(make: Callable[..., Trial], tmp_path: Path) -> None:
    trial = make()
    link = TrialLink(trial)
    for step in (10, 20):  # The first is killed, and another goes on.
        with closing(chief_of(link)) as chief:
            assert (chief.parent, chief.tags) == ("sweeps/001", {"runner.sweep.seed": "3"})
            chief.started(tmp_path)
            chief.evaluated({"loss": step / 10}, step)
            chief.check()
    link.end()
    assert trial.run_dir == tmp_path
    assert trial.curve == {10: {"loss": 1.0}, 20: {"loss": 2.0}}
    kept = RunDirectory(tmp_path).evaluations.read_text().split("\n")
    assert [json.loads(line)[0] for line in kept if line] == [10, 20]


def test_a_chief_is_told_that_it_is_pruned(make: Callable[..., Trial]) -> None:
    link = TrialLink(make(lambda metrics, step: metrics["loss"] > 1))
    with closing(chief_of(link)) as chief:
        chief.evaluated({"loss": 0.5}, 10)
        assert not chief.pruned
        chief.evaluated({"loss": 1.5}, 20)
        with pytest.raises(PrunedRunError, match="pruned at step 20"):
            chief.check()
        assert link.pruned
    with pytest.raises(PrunedRunError, match="pruned at step 20"):
        link.end()


def test_a_report_that_fails_is_raised_by_the_sweep(make: Callable[..., Trial]) -> None:
    def report(metrics: Mapping[str, float], step: int) -> bool:
        raise OSError("the study's database is gone")

    link = TrialLink(make(report))
    with closing(chief_of(link)) as chief:
        chief.evaluated({"loss": 0.5}, 10)
        chief.evaluated({"loss": 0.5}, 20)
        assert not chief.pruned
    with pytest.raises(OSError, match="the study's database is gone"):
        link.end()
