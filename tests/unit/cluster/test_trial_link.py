"""A chief calls the trial in the sweep's process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from runner.cluster.trial_link import (
    OBJECTIVE,
    TRIAL,
    LinkedTrial,
    TrialLink,
    has_begun,
    linked_trial,
    report_begun,
)
from runner.errors import SweepError
from runner.runs.run_directory import RunDirectory
from runner.sweeps.job import Trial


def chief_of(link: TrialLink) -> LinkedTrial:
    """The chief's end, in this process."""
    end, value = link.connect()
    with end:
        inherited = json.loads(value) | {"descriptor": os.dup(end.fileno())}
    chief = linked_trial({TRIAL: json.dumps(inherited)})
    assert chief is not None
    return chief


def trial(report: Callable[[Mapping[str, float], int], bool] | None = None) -> Trial:
    return Trial("sweeps/001", {"seed": "3"}, report)


def test_the_sweep_learns_what_the_chiefs_report(tmp_path: Path) -> None:
    swept = trial()
    link = TrialLink(swept)
    for step in (10, 20):  # The first is killed, and another resumes.
        chief = chief_of(link)
        with chief.connection:
            assert (chief.parent, chief.tags) == (swept.parent, swept.tags)
            assert chief.name(tmp_path) == swept.name(tmp_path)
            chief.started(tmp_path)
            chief.evaluated({"loss": step / 10}, step)
            chief.check()
            chief.fail_if_nan(0.5)
            with pytest.raises(SweepError, match="the objective is nan"):
                chief.fail_if_nan(float("nan"))
    link.end()
    chief.evaluated({"loss": 0.5}, 30)  # The sweep's process is gone.
    assert swept.run_dir == tmp_path
    assert swept.curve == {10: {"loss": 1.0}, 20: {"loss": 2.0}}
    kept = RunDirectory(tmp_path).evaluations.read_text().split("\n")
    assert [json.loads(line)[0] for line in kept if line] == [10, 20]


def test_a_report_that_fails_is_raised_by_the_sweep() -> None:
    def report(metrics: Mapping[str, float], step: int) -> bool:
        raise OSError("the study's database is gone")

    link = TrialLink(trial(report))
    chief = chief_of(link)
    with chief.connection:
        chief.evaluated({"loss": 0.5}, 10)
        assert not chief.pruned
    with pytest.raises(OSError, match="the study's database is gone"):
        link.end()


def test_the_chief_reports_that_it_has_begun_a_run(tmp_path: Path) -> None:
    report_begun({})
    environ = {OBJECTIVE: str(tmp_path / "objective")}
    assert not has_begun(environ)
    report_begun(environ)
    assert has_begun(environ)
