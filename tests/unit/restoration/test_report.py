"""The plan in words: rows, summary, table and placement."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path

from rich.console import Console

from runner.checkpoints.reader import TensorSpec
from runner.config.choices import Collision, Mode, PlanFormat
from runner.config.schema import ClusterConfig, PlanConfig
from runner.errors import Problem
from runner.restoration.conversions import Cast, Transpose
from runner.restoration.html_report import html
from runner.restoration.named_conversions import Sum
from runner.restoration.plan import Assignment, RestorationPlan
from runner.restoration.report import (
    Row,
    VariablePlacement,
    collapse,
    origin,
    problem_lines,
    report_rows,
    rows,
    shape_text,
    steps,
    summary,
    table,
    text,
    training,
)
from tests.tiny import runs
from tests.tiny.plans import checkpoint, one, plan, scaffold, variable

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


def test_a_row_for_every_variable() -> None:
    made = one(
        [variable("a/k", (3, 4), "float32"), variable("b", ())],
        scaffold("a/*", learning_rate_multiplier=0.5),
        checkpoint(shapes={"a/k": (3, 4)}, dtype="float64"),
    )
    restored, initialised = rows(made)
    assert (restored.variable, restored.shape, restored.dtype) == ("a/k", "3x4", "float32")
    assert restored.origin == "net: a/k @ step 7 (cast to float32)"
    assert restored.training == "trainable, learning rate x0.5"
    assert restored.notes == "float64 cast to float32"
    assert (restored.restored, restored.source, restored.bytes) == (True, "net", 48)
    assert (initialised.origin, initialised.shape) == ("initializer Const", "scalar")
    assert (initialised.restored, initialised.source, initialised.count) == (False, "", 1)


def test_of_a_checkpoint_that_cannot_be_used_nothing_is_said() -> None:
    made = plan(
        [variable("a/k"), variable("b")],
        {"net": scaffold("a/*")},
        {"net": None},
        unusable={"net": [Problem("no net")]},
    )
    found, initialised = rows(made)
    assert (found.origin, found.restored) == ("net: its checkpoint cannot be used", False)
    assert initialised.origin == "initializer Const"
    assert summary(made) == [
        "net: 1 variable (6 values), the checkpoint cannot be used",
        "no scaffold: 1 variable (6 values) from initializers",
    ]
    assert [each["origin"] for each in document(made)["variables"]] == ["unknown", "initializer"]
    assert document(made)["unusable"] == ["net"]
    assert "the checkpoint cannot be used" in html(made)
    assert "no checkpoint" not in html(made)


def test_steps_are_told_in_order() -> None:
    tensor = TensorSpec("a", (2, 3), "float64")
    other = TensorSpec("b", (2, 3), "float64")
    piece = SourceTensor("net", tensor, (Transpose((1, 0)), Cast("float32")), (other,), Sum())
    assert steps(piece) == ("summed", "transposed (1, 0)", "cast to float32")


def test_a_mean_names_all_its_sources() -> None:
    made = plan(
        [variable("w")],
        {"a": scaffold(), "b": scaffold()},
        {"a": checkpoint("w"), "b": checkpoint("w", step=None)},
        Collision.mean,
    )
    assert origin(made.assignments[0], made) == "a: w @ step 7, b: w"


def test_how_a_variable_trains() -> None:
    trained, frozen, never = (
        variable("a"),
        variable("a", frozen=True),
        variable("a/moving_mean"),
    )
    assert training(Assignment(trained)) == "trainable"
    assert training(Assignment(trained, freeze_until_step=9)) == "trainable from step 9"
    assert (
        training(Assignment(trained, freeze_until_step=9, learning_rate_multiplier=0.1))
        == "trainable from step 9, learning rate x0.1"
    )
    assert training(Assignment(frozen)) == "frozen"
    assert training(Assignment(never)) == ""


def test_shapes() -> None:
    assert [shape_text(shape) for shape in ((), (3,), (3, 3, 8))] == ["scalar", "3", "3x3x8"]


def row(
    variable: str, origin: str = "initializer Const", shape: str = "2x3", notes: str = ""
) -> Row:
    return Row(variable, shape, "float32", origin, "trainable", notes, False, "", 1, 24)


def names(*rows: Row) -> list[str]:
    return [each.variable for each in collapse(rows)]


def test_layers_that_agree_are_one_row() -> None:
    layers = [row(f"body/layer_{number}/{leaf}") for number in range(12) for leaf in "kb"]
    collapsed = collapse([row("stem"), *layers, row("head")])
    assert [each.variable for each in collapsed] == [
        "stem",
        "body/layer_{0..11}/k",
        "body/layer_{0..11}/b",
        "head",
    ]
    assert (collapsed[1].count, collapsed[1].bytes) == (12, 12 * 24)


def test_gaps_are_shown() -> None:
    assert names(*(row(f"l{number}") for number in (0, 1, 2, 5, 7, 8))) == ["l{0..2,5,7..8}"]


def test_a_layer_that_differs_has_a_row_of_its_own() -> None:
    layers = [row(f"l{number}", shape="9" if number == 2 else "2x3") for number in range(4)]
    assert names(*layers) == ["l{0..1,3}", "l2"]


def test_origins_go_with_the_number_or_are_the_same() -> None:
    same = [row(f"l{number}", f"net: m{number}/k @ step 7") for number in range(3)]
    assert collapse(same)[0].origin == "net: m{0..2}/k @ step 7"
    shifted = [row(f"l{number}", f"net: m{number + 1}/k{number}") for number in range(3)]
    assert collapse(shifted)[0].origin == "net: m{1..3}/k{0..2}"
    fixed = [row(f"l{number}", "net: shared1") for number in range(3)]
    assert collapse(fixed)[0].origin == "net: shared1"
    twisted = [row(f"l{number}", f"net: m{2 - number}") for number in range(3)]
    assert names(*twisted) == ["l0", "l1", "l2"]


def test_notes_go_along() -> None:
    rows = [row(f"l{number}", notes=f"no tensor 'm{number}'") for number in range(3)]
    (collapsed,) = collapse(rows)
    assert collapsed.notes == "no tensor 'm{0..2}'"


def test_nested_numbers_collapse_from_the_inside() -> None:
    rows = [row(f"block_{i}/conv{j}/k") for i in range(3) for j in (1, 2)]
    assert names(*rows) == ["block_{0..2}/conv{1..2}/k"]
    rows = [row(f"block_{i}/conv{j}/k") for i in range(3) for j in range(i + 1)]
    assert names(*rows) == ["block_0/conv0/k", "block_1/conv{0..1}/k", "block_2/conv{0..2}/k"]


def test_numbers_in_the_slots_of_layers() -> None:
    rows = [row(f"l{i}/k/Adam{suffix}") for i in range(3) for suffix in ("", "_1")]
    assert names(*rows) == ["l{0..2}/k/Adam", "l{0..2}/k/Adam_1"]


def test_nothing_to_collapse() -> None:
    assert collapse([]) == []
    assert names(row("a"), row("b1"), row("c")) == ["a", "b1", "c"]


def expand(name: str) -> list[str]:
    """All names that a collapsed name stands for."""
    match = re.search(r"\{([^}]*)\}", name)
    if match is None:
        return [name]
    numbers: list[str] = []
    for part in match[1].split(","):
        first, _, last = part.partition("..")
        numbers += map(str, range(int(first), int(last or first) + 1))
    head, tail = name[: match.start()], name[match.end() :]
    return [each for number in numbers for each in expand(f"{head}{number}{tail}")]


def test_no_variable_is_lost_or_invented() -> None:
    choose = random.Random(2)
    for _ in range(200):
        every = {}
        for _ in range(choose.randrange(1, 15)):
            layer = f"n{choose.randrange(3)}/l{choose.randrange(4)}"
            every[f"{layer}/{choose.choice(['k', 'b2'])}"] = choose.choice(["2x3", "9"])
        collapsed = collapse(row(name, shape=shape) for name, shape in every.items())
        found = {name: each.shape for each in collapsed for name in expand(each.variable)}
        assert found == every
        assert sum(each.count for each in collapsed) == len(every)


def test_very_many_rows_stay_fast() -> None:
    rows = [row(f"b{i}/l{j}/k", f"net: c{i}/l{j}/k") for i in range(500) for j in range(100)]
    start = time.process_time()
    (collapsed,) = collapse(rows)
    assert collapsed.origin == "net: c{0..499}/l{0..99}/k"
    assert time.process_time() - start < 5


SERVERS = ["/job:ps/task:0", "/job:ps/task:1"]


def test_each_server_is_told_with_what_it_holds() -> None:
    made = plan([variable("a"), variable("b", (5,)), variable("c")], {}, {})
    placement = VariablePlacement("by_size", {"a": SERVERS[0], "b": SERVERS[1], "c": SERVERS[0]})
    assert placement.lines(made, full=False) == [
        "placement on the cluster (by_size):",
        "  /job:ps/task:0: 2 variables, 48 bytes",
        "  /job:ps/task:1: 1 variable, 20 bytes",
    ]
    assert placement.lines(made, full=True)[2:4] == ["    a  24 bytes", "    c  24 bytes"]


def test_every_form_of_the_plan_shows_it(tmp_path: Path) -> None:
    def shown(form: PlanFormat, cluster: ClusterConfig) -> list[str]:
        return runs.run(tmp_path, mode=Mode.plan, cluster=cluster, plan=PlanConfig(format=form))

    cluster, alone = ClusterConfig(local=True, workers=2, ps=2), ClusterConfig()
    table = shown(PlanFormat.table, cluster)
    assert [line.strip()[:14] for line in table if "/job:ps" in line] == SERVERS
    text = shown(PlanFormat.json, cluster)
    found = {each["name"]: each["device"] for each in json.loads("\n".join(text))["variables"]}
    assert found["global_step"] == SERVERS[0]
    assert set(found.values()) == set(SERVERS)
    page = "\n".join(shown(PlanFormat.html, cluster))
    assert "Placement on the cluster (round_robin)" in page
    assert page.count("<code>global_step</code>") == 1
    for form in PlanFormat:
        assert "/job:ps" not in "\n".join(shown(form, alone))
