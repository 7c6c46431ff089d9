"""The table names every variable, the totals and the problems; nothing is cut or folded."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

from rich.console import Console

from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.config import Missing, ScaffoldConfig, VariablesConfig
from runner.errors import Problem
from runner.restoration.plan import RestorationPlan, make_plan
from runner.restoration.report import origin, problem_lines, summary, table, text
from runner.restoration.variables import StateClass, VariableSpec

KERNEL = TensorSpec("cnn/kernel", (3, 400), "float32")
VARIABLES = (
    VariableSpec(KERNEL, StateClass.WEIGHT, False, "GlorotUniform", frozen=True),
    VariableSpec(TensorSpec("cnn/bias", (3,), "float32"), StateClass.WEIGHT, True, "Zeros"),
    VariableSpec(TensorSpec("head/w", (2, 1), "float16"), StateClass.WEIGHT, True, "Ones"),
    VariableSpec(TensorSpec("global_step", (), "int64"), StateClass.GLOBAL_STEP, False, "Zeros"),
)
TENSORS = {name: replace(KERNEL, name=name) for name in ("net/kernel", "x", "y")}
SOURCE = CheckpointSpec("runs/cnn/ckpt-9", 9, TENSORS)
CNN = ScaffoldConfig(
    VariablesConfig(["cnn/*"]), "runs/cnn", rename={"cnn/": "net/"}, missing=Missing.init
)
HEAD = ScaffoldConfig(VariablesConfig(["head/*"]))
SOURCES: Mapping[str, CheckpointSpec | None] = {"cnn": SOURCE, "head": None}
PLAN = make_plan(VARIABLES, {"cnn": CNN, "head": HEAD}, SOURCES)

EXPECTED = """\
 variable      shape    dtype     value from                 trainable
 ─────────────────────────────────────────────────────────────────────
 cnn/kernel    3x400    float32   cnn: net/kernel @ step 9   frozen
 cnn/bias      3        float32   initializer Zeros          trainable
 head/w        2x1      float16   initializer Ones           trainable
 global_step   scalar   int64     initializer Zeros

cnn: 1 variable (1,200 values) from runs/cnn/ckpt-9 @ step 9, 1 initialised; 2 tensors unused
head: 1 variable (2 values) from initializers, no checkpoint
no scaffold: 1 variable (1 value) from initializers
frozen: 1 variable (1,200 values)
"""


def with_problems(*problems: Problem) -> RestorationPlan:
    return replace(PLAN, problems=problems)


def test_the_plain_text_is_the_whole_table() -> None:
    assert text(PLAN).lstrip("\n") == EXPECTED


def test_the_plain_text_is_never_folded() -> None:
    long = "/".join(["a_very_long_layer_name"] * 12)
    spec = VariableSpec(TensorSpec(long, (1,), "float32"), StateClass.WEIGHT, True, "Zeros")
    problem = Problem("x" * 400, "y" * 300)
    plan = replace(
        make_plan((spec,), {}, {}), sources={"s": replace(SOURCE, path="p" * 300)}, unused={"s": ()}
    )
    lines = text(replace(plan, problems=(problem,))).splitlines()
    assert any(long in line and line.endswith("initializer Zeros   trainable") for line in lines)
    assert any("p" * 300 in line for line in lines)
    assert {"x" * 400, f"  cause: {'y' * 300}"} <= set(lines)


def test_a_narrow_terminal_folds_names_and_cuts_nothing() -> None:
    file = io.StringIO()
    Console(file=file, width=60, force_terminal=True, color_system=None).print(table(PLAN))
    rows = [line.rstrip() for line in file.getvalue().splitlines()]
    assert max(map(len, rows)) <= 60
    assert [row.split()[-1] for row in rows if "float" in row] == ["frozen", *["trainable"] * 2]
    assert "…" not in file.getvalue()


def test_names_are_not_taken_for_markup() -> None:
    spec = VariableSpec(TensorSpec("a[red]b", (1,), "int32"), StateClass.WEIGHT, True, "Zeros")
    assert "a[red]b" in text(make_plan((spec,), {}, {}))


def test_where_a_value_comes_from() -> None:
    assert [origin(each, PLAN) for each in PLAN.assignments] == [
        "cnn: net/kernel @ step 9",
        "initializer Zeros",
        "initializer Ones",
        "initializer Zeros",
    ]


def test_a_checkpoint_without_a_step() -> None:
    sources = {"cnn": replace(SOURCE, step=None), "head": None}
    plan = make_plan(VARIABLES, {"cnn": CNN, "head": HEAD}, sources)
    assert origin(plan.assignments[0], plan) == "cnn: net/kernel"
    assert summary(plan)[0].startswith("cnn: 1 variable (1,200 values) from runs/cnn/ckpt-9, ")


def test_the_summary_counts_without_scaffolds() -> None:
    variables = [replace(each, frozen=False) for each in VARIABLES]
    assert summary(make_plan(variables, {}, {})) == [
        "no scaffold: 4 variables (1,206 values) from initializers"
    ]


def test_a_sound_plan_has_no_problem_lines() -> None:
    assert list(problem_lines(PLAN)) == []


def test_problems_are_counted_and_shown_whole() -> None:
    first, second = Problem("first", "why"), Problem("second")
    assert list(problem_lines(with_problems(first))) == ["\n1 problem:", "first\n  cause: why"]
    shown = text(with_problems(first, second))
    assert shown.endswith("\n\n2 problems:\nfirst\n  cause: why\nsecond\n")
