"""Errors of an experiment's own code: the place in the configuration, its frames, the cause."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runner.errors import ConfigError, UserCodeError
from runner.graph.build import build_graph
from tests.support.command_line import CONF, LINEAR, in_process
from tests.support.configs import OWN_GRAPH, PLAIN, tiny
from tests.support.runs import Runs, evaluations, short

HERE = "tests.samples.faulty"


class Case(NamedTuple):
    """Changes to the configuration, and the parts of the message that they cause."""

    changes: dict[str, Any]
    first: str
    functions: tuple[str, ...] = ()
    last: str = ""
    given: str = ""


def _target(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{HERE}.{name}", **arguments}


def _partial(name: str) -> dict[str, Any]:
    return _target(name, _partial_=True)


def _check(error: UserCodeError, case: Case) -> None:
    first, *lines = f"{error}\n{error.details}".rstrip("\n").splitlines()
    assert first.startswith(case.first)
    shown = re.findall(r'  File "(.*)", line \d+, in (.+)', error.details)
    assert tuple(name for _, name in shown) == case.functions
    assert {Path(file).name for file, _ in shown} <= {"faulty.py"}
    assert case.last in (lines or [first])[-1]
    assert case.given in "".join(lines[:1])
    assert len(lines) <= 20


OF_BUILDING = {
    "called": Case(
        {"model": _target("Failing", when="called")},
        "model raised RuntimeError: there are too few units",
        ("call", "_hidden"),
        "training=False",  # The last of Keras's list of arguments.
    ),
    "keyed": Case(
        {"model": _target("Failing", when="keyed")},
        "model raised KeyError: units",
        ("call", "_hidden"),
        "training=False",
    ),
    "nothing": Case(
        {"model": _target("Failing", when="nothing")},
        "model returned None",
        (),
        "remedy: end its `call` with `return`",
    ),
    "refusing": Case(
        {"model": _target("Refusing")},
        "model raised RuntimeError: no such device",
        ("__init__",),
        "RuntimeError: no such device",
    ),
    "none": Case({**PLAIN, "loss": _partial("none")}, "loss returned None"),
    "a call": Case(
        {"loss": _target("none", labels=0, outputs=0)},
        "loss raised TypeError: 'NoneType' object is not callable",
    ),
    "ranks": Case(
        {**PLAIN, "data": _target("Labels", kind="rank")},
        "loss raised ValueError: Argument `output` must have rank (ndim) `target.ndim - 1`.",
        (),
        "Received: target.shape=(None, 1, 2), output.shape=(None, 2)",
    ),
    "optimizer": Case(
        {**PLAIN, "optimizer": _target("Momentum", learning_rate=0.1)},
        "optimizer raised RuntimeError: no slot of that name",
        ("update_step",),
        "RuntimeError: no slot of that name",
    ),
    "metric": Case(
        {**PLAIN, "metrics": {"wrong": _partial("misspelt")}},
        "metrics.wrong raised AttributeError: 'SymbolicTensor' object has no attribute 'shapes'",
        ("misspelt",),
        "AttributeError: 'SymbolicTensor' object has no attribute 'shapes'",
        "  it was called with labels int64 [None], outputs float32 [None, 2]",
    ),
    "graph": Case(
        {**OWN_GRAPH, "graph": _target("graph")},
        "graph raised KeyError: 'hidden_units'",
        ("graph",),
        "KeyError: 'hidden_units'",
        f"  {HERE}.graph was called for mode validation",
    ),
}
OF_BUILDING |= {
    "quitting data": Case(
        {"data": _target("QuittingData")},
        "data.train() raised SystemExit: 0",
        ("train",),
        "SystemExit: 0",
    ),
    "quitting model": Case(
        {"model": _target("QuittingModel")},
        "model raised SystemExit: 5",
        ("__init__",),
        "SystemExit: 5",
    ),
}
OF_RUNNING = {
    "quitting hook": Case(
        {"hooks": {"quits": _target("QuittingHook")}},
        "hooks.quits raised SystemExit: enough",
        ("after_run",),
        "SystemExit: enough",
    ),
    "model": Case(
        {"model": _target("Failing", when="run"), "metrics": {}},
        "model raised InvalidArgumentError: Shape of tensor ",
        ("call", "_hidden"),
        "InvalidArgumentError: Shape of tensor ",
    ),
    "assertion": Case(
        {**PLAIN, "loss": _partial("checked")},
        "loss raised InvalidArgumentError: assertion failed: ",
        ("checked",),
        "InvalidArgumentError: assertion failed: ",
    ),
    "strings": Case(
        {**PLAIN, "data": _target("Labels", kind="strings")},
        "loss raised UnimplementedError: Cast string to float is not supported",
        (),
        "UnimplementedError: Cast string to float is not supported",
    ),
    "generator": Case(
        {"data": _target("Breaking"), "train": short(save_input=False)},
        "data.train() raised KeyError: 'row 24 has no label'",
        ("batches", "_labels"),
        "KeyError: 'row 24 has no label'",
    ),
    "iterator": Case(
        {"hooks": {"drift": _target("Drift", rows=3)}},
        "hooks.drift raised StopIteration",
        ("after_run",),
        "StopIteration",
    ),
}


@pytest.mark.parametrize("case", OF_BUILDING.values(), ids=OF_BUILDING)
def test_an_error_as_the_graph_is_built(case: Case) -> None:
    with pytest.raises(UserCodeError) as caught:
        build_graph(tiny(**case.changes), "validation", train=True)
    _check(caught.value, case)


@pytest.mark.parametrize("case", OF_RUNNING.values(), ids=OF_RUNNING)
def test_an_error_in_a_step(case: Case, cheap: Runs) -> None:
    # All but the `LINEAR` ones have a model of their own.
    runs = Runs(cheap.folder) if "model" in case.changes else cheap
    with pytest.raises(UserCodeError) as caught:
        runs.run(**case.changes)
    _check(caught.value, case)


def test_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = in_process(tmp_path, monkeypatch, capfd, *CONF, *LINEAR, "tracking=none")
    outcome = command(f"+hooks.drift._target_={HERE}.Drift")
    # Where an earlier test has imported TensorFlow, its C++ writes notes too.
    first, *lines = outcome.err[outcome.err.index("runner: ") :].splitlines()
    assert (outcome.code, first) == (1, "runner: hooks.drift raised ValueError: the drift is 3.5")
    assert [each.rpartition(" ")[2] for each in lines if "File " in each] == ["after_run", "_check"]
    assert lines[-1] == "ValueError: the drift is 3.5"


@pytest.mark.parametrize("mode", ["plan", "train"])
def test_a_module_that_ends_the_process_is_an_error(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = in_process(tmp_path, monkeypatch, capfd, *CONF, *LINEAR, "tracking=none")
    outcome = command("+hooks.quits._target_=tests.samples.quitting.Hook", f"mode={mode}")
    assert outcome.code == 1
    assert "runner: hooks.quits._target_ raised SystemExit: 0\n" in outcome.err
    assert 'quitting.py", line 7' in outcome.err


def test_a_hook_of_the_run_that_refuses_its_arguments_leaves_no_run(cheap: Runs) -> None:
    drift = _target("Drift", limit=-1, directory="${run:directory}")
    with pytest.raises(ConfigError, match=rf"hooks\.drift: {HERE}\.Drift refuses its arguments"):
        cheap.run(hooks={"drift": drift})
    assert (cheap.count(), cheap.lines()) == (0, [])


def test_metrics_of_booleans_and_whole_numbers_are_averaged(plain: Runs) -> None:
    metrics = {name: _partial(name) for name in ("exact", "hits")}
    _, lines = plain.run(train=short(steps=10), metrics={**tiny().metrics, **metrics})
    assert evaluations(lines) == [10]
    for line in ("step 5/10 ", "step 10  validation"):
        (shown,) = [each for each in lines if each.startswith(line)]
        values = re.findall(r"(?:accuracy|exact|hits) ([\d.]+)", shown)
        assert len(values) == 3
        assert len(set(values)) == 1
        assert 0 < float(values[0]) < 1
