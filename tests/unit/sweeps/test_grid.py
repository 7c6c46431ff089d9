"""The grid: its points, and what the same command does about trials of before."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from rich.console import Console

from runner.console import Screen
from runner.errors import ConfigError
from runner.sweeps.execution import Execution
from runner.sweeps.grid_sweeper import GridSweeper, grid
from runner.sweeps.points import ComposedPoint, Point, parsed
from runner.sweeps.sweep_directory import Attempt, SweepDirectory
from runner.system.status import Status
from tests.support.configs import tiny
from tests.support.sweeping import FakeLauncher, Killed, easy

pytestmark = pytest.mark.usefixtures("compose")


def _points(*overrides: str) -> list[Point]:
    return grid(parsed(overrides, GlobalHydra.instance().config_loader()))


def test_every_combination_is_a_point_and_the_last_key_changes_fastest() -> None:
    points = _points("+experiment=tiny", "seed=1,2", "++train.steps=range(3,5)")
    assert [point.values for point in points] == [
        {"seed": "1", "train.steps": "3"},
        {"seed": "1", "train.steps": "4"},
        {"seed": "2", "train.steps": "3"},
        {"seed": "2", "train.steps": "4"},
    ]
    assert points[0].overrides == ("+experiment=tiny", "seed=1", "++train.steps=3")
    assert str(points[0]) == "seed=1 train.steps=3"


# Overrides -> overrides and values of the first point, and the number of points.
POINTS: dict[tuple[str, ...], tuple[tuple[str, ...], dict[str, str], int]] = {
    ("+experiment=tiny", "seed=1"): (("+experiment=tiny", "seed=1"), {}, 1),
    ("~scaffolds.lstm", "scaffold@scaffolds.cnn=digits_cnn,random"): (
        ("~scaffolds.lstm", "scaffold@scaffolds.cnn=digits_cnn"),
        {"scaffold@scaffolds.cnn": "digits_cnn"},
        2,
    ),
    (r"a.checkpoint=experiment\:tiny,'a, b'",): (
        (r"a.checkpoint=experiment\:tiny",),
        {"a.checkpoint": "experiment:tiny"},
        2,
    ),
    ("a.checkpoint='a, b','c'",): (("a.checkpoint='a, b'",), {"a.checkpoint": "a, b"}, 2),
    # A quoted string is a string, also in a function of the grammar.
    ("a='1.10','1.9'",): (("a='1.10'",), {"a": "'1.10'"}, 2),
    ("a=choice('1.10','1.9')",): (("a='1.10'",), {"a": "'1.10'"}, 2),
    ("a=choice('null','true',1.10)",): (("a='null'",), {"a": "'null'"}, 3),
    ("a=choice(str([1,2]),x)",): (("a=['1','2']",), {"a": "['1','2']"}, 2),
    ("a=choice(1.10,'1.10')",): (("a=1.1",), {"a": "1.1"}, 2),
    ("a=choice('é',x)",): (("a='é'",), {"a": "é"}, 2),
    ("a=choice('a,b','')",): (("a='a,b'",), {"a": "a,b"}, 2),
    (r"a=choice('it\'s',1)",): ((r"a='it\'s'",), {"a": "it's"}, 2),
    ("a=choice({b:'1'},[x,'2'])",): (("a={b:'1'}",), {"a": "{b:'1'}"}, 2),
    ("a=sort('2','10')",): (("a='10'",), {"a": "'10'"}, 2),
    ("a=tag(t,choice('1',2))",): (("a='1'",), {"a": "'1'"}, 2),
    # A key may be given twice where that sweeps nothing, and deleted before.
    ("seed=1", "seed=2"): (("seed=1", "seed=2"), {}, 1),
    ("~data.note", "+data.note=1,2"): (("~data.note", "+data.note=1"), {"data.note": "1"}, 2),
}


@pytest.mark.parametrize("overrides", POINTS, ids=" ".join)
def test_the_first_of_the_points(overrides: tuple[str, ...]) -> None:
    points = _points(*overrides)
    assert (points[0].overrides, points[0].values, len(points)) == POINTS[overrides]


MISTAKES: dict[tuple[str, ...], str] = {
    ("seed=interval(1,2)",): "seed=interval(1,2) is an interval",
    ("seed=range(3,1)", "train.steps=1,2"): "seed=range(3,1) has no values",
    ("optimizer=glob(zzz*)",): "optimizer=glob(zzz*) has no values",
    ("seed=range(1.0,9.0,0.0)",): "seed=range(1.0,9.0,0.0) has no values",
    ("seed=1,2,1", "train.steps=1,2"): "seed=1,2,1 lists '1' 2 times",
    ("optimizer=adam,'adam'",): "optimizer=adam,'adam' lists 'adam' 2 times",
    ("seed=1,2", "seed=3"): "seed is set 2 times",
    ("++seed=3", "seed=1,2", "seed=4,5"): "seed is set 3 times",
}


@pytest.mark.parametrize("overrides", MISTAKES, ids=" ".join)
def test_what_is_no_grid(overrides: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as raised:
        _points(*overrides)
    assert [problem.state for problem in raised.value.problems] == [MISTAKES[overrides]]


def _composed(*fingerprints: str) -> list[ComposedPoint]:
    return [
        ComposedPoint(Point((f"seed={n}",), {"seed": str(n)}), tiny(seed=n), fingerprint)
        for n, fingerprint in enumerate(fingerprints)
    ]


@pytest.fixture
def launcher(directory: SweepDirectory) -> FakeLauncher:
    return FakeLauncher(directory)


def _run(
    launcher: FakeLauncher, composed: Sequence[ComposedPoint], screen: io.StringIO | None = None
) -> list[Attempt]:
    sweep = GridSweeper()
    sweep.screen = Screen(Console(file=screen or io.StringIO()))
    execution = Execution(launcher.directory, launcher, retries=0)
    return sweep.trials(composed, execution, launcher.directory)


def test_what_has_finished_is_not_run_again(launcher: FakeLauncher) -> None:
    assert len(_run(launcher, _composed("a", "b", "c"))) == 3
    launcher.directory.attempt(1).update(status=Status.KILLED)
    # The configuration of the last one has changed since, in its experiment's file.
    printed = io.StringIO()
    trials = _run(launcher, _composed("a", "b", "d"), printed)
    assert launcher.launched == [["seed=0", "seed=1", "seed=2"], ["seed=1", "seed=2"]]
    assert [trial.trial for trial in trials] == [0, 1, 2]
    assert {trial.status for trial in trials} == {Status.FINISHED}
    assert printed.getvalue() == "1 of 3 trials have finished before\n"


def _point(**values: str) -> ComposedPoint:
    fingerprint = "-".join(sorted(values.values()))
    return ComposedPoint(Point((fingerprint,), values), tiny(), fingerprint)


def test_the_same_grid_in_another_order_trains_nothing_again(launcher: FakeLauncher) -> None:
    points = [_point(a=a, b=b) for a in "12" for b in "34"]
    _run(launcher, points)
    launcher.directory.attempt(1).update(status=Status.KILLED)
    others = [_point(b=b, a=a) for b in "34" for a in "12"]
    trials = _run(launcher, [*others, _point(b="9", a="9")])
    assert launcher.started == ["1-3", "1-4", "2-3", "2-4", "1-4", "9-9"]
    # The one that was killed keeps its number, and with that its run.
    assert [trial.trial for trial in trials] == [0, 2, 1, 3, 4]


def test_a_trial_that_ends_the_sweeping_process_comes_last_the_next_time(
    launcher: FakeLauncher,
) -> None:
    deadly = {"seed=0", "seed=2"}

    def work(overrides: Sequence[str]) -> Any:
        if overrides[0] in deadly:
            raise Killed
        return easy(overrides)

    launcher.work = work
    composed = _composed("a", "b", "c", "d")
    for _ in range(4):
        with pytest.raises(Killed):
            _run(launcher, composed)
    # Those that can end have done so, and the others take turns.
    assert [overrides[-1] for overrides in launcher.started] == ["0", "1", "2", "3", "0", "2"]
    deadly.clear()
    assert [trial.trial for trial in _run(launcher, composed)] == [0, 1, 2, 3]


def test_a_process_that_outlived_its_sweep_is_waited_for(
    launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Attempt(0, values={"seed": "0"}, fingerprint="a", status=Status.RUNNING)
    launcher.directory.add([running])
    file = launcher.directory.attempt(0)
    file.lock.acquire()
    printed: list[str] = []

    def line(screen: Screen, text: str) -> None:
        printed.append(text)
        file.update(status=Status.FINISHED)
        file.lock.release(force=True)

    monkeypatch.setattr(Screen, "line", line)
    (trial,) = _run(launcher, _composed("a"))
    assert trial.status is Status.FINISHED
    assert printed[0] == "trial 0 is still running since before; waiting for it"
    assert launcher.started == []


def test_other_params_are_another_sweep() -> None:
    assert GridSweeper().identity() == ""
    assert GridSweeper({"seed": [1]}).identity() != GridSweeper({"seed": [2]}).identity() != ""
