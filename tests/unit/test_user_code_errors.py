"""Errors of an experiment's own code: the place in the configuration, its frames, the cause."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runner.errors import UserCodeError
from runner.graph.build import build_graph
from tests.tiny.command_line import CONF, Command, in_process
from tests.tiny.configs import tiny

HERE = "tests.tiny.faulty"


class Case(NamedTuple):
    """What is overridden; the first line printed; the functions shown; a part of the last line."""

    overrides: str
    first: str
    functions: tuple[str, ...] = ()
    last: str = ""


CASES = [
    Case(
        f"model._target_={HERE}.Failing +model.when=called",
        "model raised RuntimeError: there are too few units",
        ("call", "_hidden"),
        "training=True",  # The last of Keras's list of arguments.
    ),
    Case(
        f"model._target_={HERE}.Failing +model.when=run",
        "model raised InvalidArgumentError: Shape of tensor ",
        ("call", "_hidden"),
        "InvalidArgumentError: Shape of tensor ",
    ),
    Case(
        f"model._target_={HERE}.Failing +model.when=keyed",
        "model raised KeyError: units",
        ("call", "_hidden"),
        "training=True",
    ),
    Case(
        f"model._target_={HERE}.Failing +model.when=nothing",
        "model returned None",
        (),
        "remedy: end its `call` with `return`",
    ),
    Case(
        f"model._target_={HERE}.Refusing",
        "model raised RuntimeError: no such device",
        ("__init__",),
        "RuntimeError: no such device",
    ),
    Case(f"loss._target_={HERE}.none ~loss.from_logits", "loss returned None"),
    Case(
        f"loss._target_={HERE}.checked ~loss.from_logits",
        "loss raised InvalidArgumentError: assertion failed: ",
        ("checked",),
        "InvalidArgumentError: assertion failed: ",
    ),
    Case(
        f"optimizer._target_={HERE}.Momentum ~optimizer.beta1 ~optimizer.beta2 ~optimizer.epsilon",
        "optimizer raised RuntimeError: no slot of that name",
        ("update_step",),
        "RuntimeError: no slot of that name",
    ),
    Case(
        f"+metrics.wrong._target_={HERE}.misspelt +metrics.wrong._partial_=true",
        "metrics.wrong raised AttributeError: 'SymbolicTensor' object has no attribute 'shapes'",
        ("misspelt",),
        "AttributeError: 'SymbolicTensor' object has no attribute 'shapes'",
    ),
    Case(
        f"data._target_={HERE}.Labels +data.kind=strings ~metrics.accuracy",
        "loss raised UnimplementedError: Cast string to int64 is not supported",
        (),
        "UnimplementedError: Cast string to int64 is not supported",
    ),
    Case(
        f"data._target_={HERE}.Labels +data.kind=rank",
        "loss raised ValueError: Argument `output` must have rank (ndim) `target.ndim - 1`.",
        (),
        "Received: target.shape=(None, 1, 2), output.shape=(None, 2)",
    ),
    Case(
        "loss=categorical_crossentropy",
        "loss raised ValueError: Arguments `target` and `output` must have the same ",
        (),
        "shape",
    ),
    Case(
        f"data._target_={HERE}.Breaking",
        "data.train() raised KeyError: 'row 24 has no label'",
        ("batches", "_labels"),
        "KeyError: 'row 24 has no label'",
    ),
    Case(
        f"+hooks.drift._target_={HERE}.Drift",
        "hooks.drift raised ValueError: the drift is 3.5",
        ("after_run", "_check"),
        "ValueError: the drift is 3.5",
    ),
    Case(
        f"+hooks.drift._target_={HERE}.Drift +hooks.drift.rows=3",
        "hooks.drift raised StopIteration",
        ("after_run",),
        "StopIteration",
    ),
]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Runs the command line in this process, in an empty directory."""
    return in_process(tmp_path, monkeypatch, capfd, *CONF, "+experiment=tiny", "tracking=none")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.overrides)
def test_what_an_error_in_an_experiments_code_prints(case: Case, command: Command) -> None:
    outcome = command(*case.overrides.split())
    # Where an earlier test has imported TensorFlow, its C++ writes notes too.
    printed = outcome.err[outcome.err.index("runner: ") :]
    first, *lines = printed.rstrip("\n").splitlines()
    assert outcome.code == 1
    assert first.startswith(f"runner: {case.first}")
    shown = re.findall(r'  File "(.*)", line \d+, in (.+)', printed)
    assert tuple(name for _, name in shown) == case.functions
    assert {Path(file).name for file, _ in shown} <= {"faulty.py"}
    assert case.last in lines[-1]
    assert len(lines) <= 20


def test_a_graph_of_ones_own_has_its_place() -> None:
    parts: dict[str, Any] = {key: {} for key in ("data", "model", "loss", "metrics", "optimizer")}
    config = tiny(graph={"_target_": f"{HERE}.graph"}, **parts)
    with pytest.raises(UserCodeError) as caught:
        build_graph(config, "validation", train=True)
    assert str(caught.value) == (
        f"graph raised KeyError: 'hidden_units'\n  {HERE}.graph was called for mode validation"
    )


def test_a_hook_of_the_run_that_refuses_its_arguments_leaves_no_run(
    command: Command, tmp_path: Path
) -> None:
    drift = [f"+hooks.drift._target_={HERE}.Drift", "+hooks.drift.limit=-1"]
    outcome = command(*drift, "+hooks.drift.directory='${run:directory}'")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"runner: hooks.drift: {HERE}.Drift refuses its arguments\n")
    assert not list(tmp_path.glob("runs/tiny/0*"))


def test_the_arguments_of_what_is_called_are_shown(command: Command) -> None:
    overrides = f"+metrics.wrong._target_={HERE}.misspelt +metrics.wrong._partial_=true mode=plan"
    assert command(*overrides.split()).err.splitlines()[1] == (
        "  it was called with labels int64 [None], outputs float32 [None, 2]"
    )


def test_metrics_of_booleans_and_whole_numbers_are_averaged(command: Command) -> None:
    names = ("exact", "hits")
    metrics = [f"+metrics.{name}._target_={HERE}.{name}" for name in names]
    partial = [f"+metrics.{name}._partial_=true" for name in names]
    outcome = command("train.steps=10", *metrics, *partial)
    assert outcome.code == 0
    for line in ("step 5/10 ", "step 10  validation"):
        (shown,) = [each for each in outcome.out.splitlines() if each.startswith(line)]
        values = re.findall(r"(?:accuracy|exact|hits) ([\d.]+)", shown)
        assert len(values) == 3
        assert len(set(values)) == 1
        assert 0 < float(values[0]) < 1
