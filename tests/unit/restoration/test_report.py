"""The plan as a table and as summary lines."""

from __future__ import annotations

from rich.console import Console

from runner.restoration.plan import RestorationPlan
from runner.restoration.report import problem_lines, report_rows, summary, table, text
from tests.tiny.plans import checkpoint, plan, scaffold, variable

LAYERS = [f"body/layer_{number}/kernel" for number in range(12)]


def example(broken: bool = False) -> RestorationPlan:
    return plan(
        [
            *(variable(name) for name in LAYERS),
            variable("frozen/kernel", frozen=True),
            variable("head/[bold]kernel"),
            variable("global_step", ()),
        ],
        {
            "body": scaffold("body/*"),
            "frozen": scaffold("frozen/*", trainable=False),
            "head": scaffold("heda/*" if broken else "head/*"),
        },
        {
            "body": checkpoint(
                *LAYERS, *(f"extra_{number}" for number in range(7)), digest="sha256:ab"
            ),
            "frozen": checkpoint("frozen/kernel", dtype="float64", step=None),
            "head": None,
        },
    )


def test_the_table_collapses_numbered_layers() -> None:
    shown = text(example())
    row = next(line for line in shown.splitlines() if "body/layer_{0..11}/kernel" in line)
    assert row.split() == [
        "body/layer_{0..11}/kernel",
        "2x3",
        "float32",
        "body:",
        "body/layer_{0..11}/kernel",
        "@",
        "step",
        "7",
        "trainable",
    ]
    assert "body/layer_3/kernel" not in shown
    assert len(report_rows(example())) == 4


def test_the_full_table_has_every_variable_and_every_unused_tensor() -> None:
    shown = text(example(), full=True)
    for name in (*LAYERS, "extra_6"):
        assert name in shown
    assert len(report_rows(example(), full=True)) == 15


def test_names_are_no_markup_and_are_never_folded() -> None:
    shown = text(example())
    assert "head/[bold]kernel" in shown
    long = "x/" * 200 + "kernel"
    made = plan([variable(long)], {"net": scaffold()}, {"net": checkpoint(long)})
    assert f" {long} " in text(made)


def test_the_summary() -> None:
    assert summary(example()) == [
        "body: 12 variables (72 values) from ckpt/model @ step 7; 7 tensors unused; sha256:ab",
        "frozen: 1 variable (6 values) from ckpt/model; 0 tensors unused",
        "head: 1 variable (6 values) from initializers, no checkpoint",
        "no scaffold: 1 variable (1 value) from initializers",
        "frozen: 1 variable (6 values)",
    ]


def test_unused_tensors_are_listed() -> None:
    assert (
        "unused in body: extra_0, extra_1, extra_2, extra_3, extra_4 and 2 more"
        in text(example()).splitlines()
    )


def test_notes_have_a_column_only_where_there_are_any() -> None:
    assert "float64 cast to float32" in text(example())
    bare = plan([variable("a")], {"net": scaffold()}, {"net": checkpoint("a")})
    assert "notes" not in text(bare)


def test_notes_on_the_whole_are_below() -> None:
    made = plan([variable("a")], {"net": scaffold(optional=True)}, {"net": None})
    assert "note: net: the checkpoint is optional and absent" in text(made)


def test_problems_come_last() -> None:
    assert list(problem_lines(example())) == []
    lines = list(problem_lines(example(broken=True)))
    assert lines[0] == "\n1 problem:"
    assert lines[1].startswith("scaffolds.head.variables: 'heda/*' matches no variable")
    assert text(example(broken=True)).rstrip().endswith("choices: head/*, head/[bold]kernel")


def test_a_narrow_terminal_folds_names_and_cuts_nothing() -> None:
    console = Console(width=60, force_terminal=True, color_system=None)
    bare = plan(
        [variable("cnn/a_kernel", (3, 400)), variable("b", frozen=True)],
        {"net": scaffold(trainable=True)},
        {"net": checkpoint("b", shapes={"cnn/a_kernel": (3, 400)})},
    )
    with console.capture() as capture:
        console.print(table(bare))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert max(map(len, lines)) <= 60
    assert [line.split()[-1] for line in lines if "float" in line] == ["trainable", "frozen"]
    assert "…" not in capture.get()


def test_the_table_is_laid_out_like_this() -> None:
    bare = plan(
        [variable("cnn/kernel", (3, 400), frozen=True), variable("global_step", (), "int64")],
        {"cnn": scaffold("cnn/*", rename={"cnn/": "net/"})},
        {"cnn": checkpoint(shapes={"net/kernel": (3, 400), "x": ()})},
    )
    assert (
        text(bare).lstrip("\n")
        == """\
 variable      shape    dtype     value from                 trainable
 ─────────────────────────────────────────────────────────────────────
 cnn/kernel    3x400    float32   cnn: net/kernel @ step 7   frozen
 global_step   scalar   int64     initializer Const

cnn: 1 variable (1,200 values) from ckpt/model @ step 7; 1 tensor unused
no scaffold: 1 variable (1 value) from initializers
frozen: 1 variable (1,200 values)
unused in cnn: x
"""
    )


def test_a_terminal_shows_the_same() -> None:
    console = Console(width=170, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(table(example()))
    assert max(map(len, capture.get().splitlines())) <= 170
    assert " body/layer_{0..11}/kernel " in capture.get()
