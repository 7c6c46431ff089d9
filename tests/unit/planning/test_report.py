"""The plan in words: rows, summary, table and placement, one golden for each format, provenance.

`RUNNER_GOLDENS=write pytest tests/unit/planning/test_report.py` rewrites the goldens.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from runner.checkpoints.reader import CheckpointSpec
from runner.config.choices import Missing, Mode, PlanFormat, StateClass
from runner.config.schema import ClusterConfig, PlanConfig
from runner.errors import Problem
from runner.graph.replica import VariablePlacement
from runner.planning.html_report import html
from runner.planning.json_report import json_text, provenance_document
from runner.planning.plan import RestorationPlan
from runner.planning.report import (
    Row,
    collapse,
    report_rows,
    summary,
    table,
    text,
)
from runner.planning.variables import Partition
from runner.runs.provenance import Origin, chain
from tests.support import runs
from tests.support.configs import LINEAR
from tests.support.plans import checkpoint, one, plan, scaffold, slot, variable

GOLDENS = Path(__file__).parent / "goldens"
LAYERS = [f"body/layer_{number}/kernel" for number in range(3)]
EVIL = "<script>alert('1')</script>&\"ä[bold]"


def example() -> RestorationPlan:
    """A plan with all that a report shows: layers, casts, schedules, unused tensors, problems."""
    return plan(
        [
            *(variable(name) for name in LAYERS),
            variable("frozen/kernel", frozen=True),
            variable("head/kernel"),
            variable(f"head/{EVIL}", (250, 4)),
            variable("lost/kernel"),
            variable("new/kernel"),
            variable("emb/part_1", (1, 2), partition=Partition("emb", (2, 2), (1, 0))),
            variable("global_step", (), "int64"),
            *(slot(f"{name}/Adam") for name in LAYERS),
        ],
        {
            "body": scaffold("body/*", learning_rate_multiplier=0.1, freeze_until_step=9),
            "frozen": scaffold("frozen/*", trainable=False, transpose={"frozen/kernel": [1, 0]}),
            "head": scaffold("heda/*", "head/*"),
            "lost": scaffold("lost/*"),
            "new": scaffold("new/*", optional=True),
            "emb": scaffold("emb", finite=True),
        },
        {
            "body": checkpoint(
                *LAYERS, *(f"extra_{number}" for number in range(7)), digest="sha256:ab"
            ),
            "frozen": checkpoint(
                shapes={"frozen/kernel": (3, 2)}, dtype="float64", step=None, format="NumPy"
            ),
            "head": checkpoint("head/kernel", EVIL, path=f"/x/{EVIL}"),
            "lost": None,
            "new": None,
            "emb": checkpoint(shapes={"emb": (2, 2)}),
        },
        unusable={"lost": [Problem("no lost", "it is gone")]},
    )


FORMATS = {
    "plan.txt": lambda: text(example()),
    "plan.full.txt": lambda: text(example(), full=True),
    "plan.json": lambda: json_text(example()),
    "plan.html": lambda: html(example(), f"title {EVIL}"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_report_is_what_its_golden_holds(name: str) -> None:
    path, shown = GOLDENS / name, FORMATS[name]()
    if os.environ.get("RUNNER_GOLDENS") == "write":
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


def test_the_documented_keys_of_the_json_are_the_keys() -> None:
    text = json_text(example())
    parsed = json.loads(text)
    assert text.isascii()
    assert parsed["schema"] == 3
    documented = json_text.__doc__ or ""
    parts = [parsed["model"], parsed["sources"]["body"]]
    for keys in (parsed, *parts, parsed["variables"][0], parsed["problems"][0]):
        for key in keys:
            assert f"`{key}`" in documented


def test_many_numbered_layers_share_a_row() -> None:
    every = [variable(f"body/layer_{number}/kernel") for number in range(70)]
    made = plan(every, {}, {})
    assert [each.variable for each in report_rows(made)] == ["body/layer_{0..69}/kernel"]
    assert html(made).count("<tr class") == 70


def test_names_are_never_folded_in_plain_text() -> None:
    long = "x/" * 200 + "kernel"
    shown = text(one([variable(long)], scaffold(), checkpoint(long)))
    assert f" {long} " in shown
    assert "notes" not in shown, "there are none"


def test_a_narrow_terminal_gets_two_lines_a_variable_and_cuts_nothing() -> None:
    console = Console(width=40, force_terminal=True, color_system=None)
    bare = one(
        [variable("cnn/a_very_long_kernel", (3, 400)), variable("b", frozen=True)],
        scaffold(),
        checkpoint("b", shapes={"cnn/a_very_long_kernel": (3, 400)}),
    )
    with console.capture() as capture:
        console.print(table(bare))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert max(map(len, lines)) <= 40
    at = lines.index("cnn/a_very_long_kernel  3x400")
    assert lines[at + 1 : at + 4] == ["  net, trains", "b  2x3", "  net, frozen"]
    assert "…" not in capture.get()


MODEL = [variable("a/k", (8, 10)), variable("a/moving_mean", (10,)), variable("b/k", (10,))]
STATE = [slot("a/k/Adam"), slot("a/k/Adam_1"), variable("global_step", (), "int64")]


@pytest.mark.parametrize(
    ("scaffolds", "unusable", "line"),
    [
        ((), (), "3 model variables from initializers"),
        (
            "a",
            (),
            "2 of 3 model variables (90 % of their bytes) from 1 checkpoint, 1 from initializers",
        ),
        ("ab", (), "3 of 3 model variables (100 % of their bytes) from 2 checkpoints"),
        (
            "ab",
            "b",
            "2 of 3 model variables (90 % of their bytes) from 1 checkpoint, "
            "1 from a checkpoint that cannot be used; 1 problem",
        ),
    ],
)
def test_the_first_line_counts_the_models_variables(
    scaffolds: tuple[str, ...], unusable: tuple[str, ...], line: str
) -> None:
    named = {"a/k": (8, 10), "a/moving_mean": (10,), "b/k": (10,)}
    made = plan(
        [*MODEL, *STATE],
        {name: scaffold(f"{name}/*") for name in scaffolds},
        {
            name: None if name in unusable else checkpoint(path=f"ckpt/{name}", shapes=named)
            for name in scaffolds
        },
        unusable={name: [Problem("gone")] for name in unusable},
    )
    assert summary(made)[0] == text(made).splitlines()[0] == line
    rows = report_rows(made)
    assert [each.variable for each in rows[:3]] == [each.name for each in MODEL]
    assert [(each.variable, each.shape) for each in rows[3:]] == [
        ("2 optimizer slots", "48 B"),
        ("global_step", "scalar int64"),
    ]
    assert len(report_rows(made, full=True)) == 6


def test_a_class_of_state_that_is_restored_in_part_is_one_row() -> None:
    made = plan(
        [
            variable("a"),
            variable("b"),
            *(slot(f"{name}/Adam{end}") for name in "ab" for end in "mv"),
        ],
        {"net": scaffold("a", "a/*", state=[StateClass.weights, StateClass.optimizer_slots])},
        {"net": checkpoint("a", "a/Adamm", "a/Adamv")},
    )
    last = report_rows(made)[-1]
    assert (last.variable, last.origin) == ("4 optimizer slots", "2 net, 2 initializers")


def test_digests_are_short_on_a_screen_and_whole_in_a_file() -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    made = one([variable("w")], scaffold(), checkpoint("w", digest=digest))
    assert digest in text(made)
    assert digest in html(made)
    assert summary(made)[1].endswith("; sha256:01234567")


@pytest.mark.parametrize(
    ("rules", "source", "origin"),
    [
        ({}, checkpoint("a/k"), "net"),
        ({"rename": {"a/": "c/"}}, checkpoint("c/k"), "net: c/k"),
        # The name that people know, rather than the place in the file.
        ({}, checkpoint("layers/0", aliases={"a/k": "layers/0"}), "net"),
        ({"rename": {"a/": "c/"}}, checkpoint("0", aliases={"c/k": "0"}), "net: c/k"),
        # A tied tensor has its first name.
        ({}, checkpoint("a/k", tied={"b/k": "a/k"}), "net"),
        ({"rename": {"a/": "c/"}}, checkpoint("d/k", tied={"c/k": "d/k"}), "net: d/k"),
        ({"missing": Missing.init}, checkpoint(), "Const"),
    ],
)
def test_what_is_not_obvious_of_an_origin_is_named(
    rules: dict[str, Any], source: CheckpointSpec, origin: str
) -> None:
    (found,) = report_rows(one([variable("a/k")], scaffold(**rules), source))
    assert found.origin == origin


def row(variable: str, origin: str = "Zeros", shape: str = "2x3") -> Row:
    return Row(variable, shape, origin, "trains", "", "", StateClass.weights, None, 24)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], []),
        (
            ["stem", *(f"l_{at}/{leaf}" for at in range(12) for leaf in "kb"), "head"],
            ["stem", "l_{0..11}/k", "l_{0..11}/b", "head"],
        ),
        ([f"l{at}" for at in (0, 1, 2, 5, 7, 8)], ["l{0..2,5,7..8}"]),
        ([f"b_{i}/c{j}/k" for i in range(3) for j in (1, 2)], ["b_{0..2}/c{1..2}/k"]),
        (
            [f"b_{i}/c{j}/k" for i in range(3) for j in range(i + 1)],
            ["b_0/c0/k", "b_1/c{0..1}/k", "b_2/c{0..2}/k"],
        ),
        (
            [f"l{i}/k/Adam{end}" for i in range(3) for end in ("", "_1")],
            ["l{0..2}/k/Adam", "l{0..2}/k/Adam_1"],
        ),
    ],
)
def test_numbered_layers_that_agree_can_share_a_row(rows: list[str], expected: list[str]) -> None:
    assert [each.variable for each in collapse([row(name) for name in rows])] == expected


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("m{0}/k @ step 7", ["m{0..2}/k @ step 7"]),
        ("m{1}/k{0}", ["m{1..3}/k{0..2}"]),
        ("shared1", ["shared1"]),
        ("m{2}", ["m2", "m1", "m0"]),
    ],
)
def test_origins_and_notes_go_with_the_number_or_are_the_same(
    origin: str, expected: list[str]
) -> None:
    rows = []
    for at in range(3):
        numbered = origin.format(at, at + 1, 2 - at)
        rows.append(replace(row(f"l{at}", numbered), notes=numbered))
    joined = collapse(rows)
    assert [each.origin for each in joined] == [each.notes for each in joined] == expected


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


NAMES = st.from_regex(r"n[0-2]/l[0-3]/(k|b2)", fullmatch=True)


@given(st.dictionaries(NAMES, st.sampled_from(["2x3", "9"]), min_size=1))
def test_no_variable_is_lost_or_invented(every: dict[str, str]) -> None:
    collapsed = collapse([row(name, shape=shape) for name, shape in every.items()])
    names = [name for each in collapsed for name in expand(each.variable)]
    assert sorted(names) == sorted(every)
    for each in collapsed:
        shapes = {every[name] for name in expand(each.variable)}
        assert set(each.shape.split(" .. ")) <= shapes
        assert each.count == len(expand(each.variable))
        assert each.shape in shapes or len(shapes) > 1
    assert sum(each.bytes for each in collapsed) == 24 * len(every)


def test_blocks_of_several_shapes_share_a_row() -> None:
    every = [
        variable(f"stage{s}/block{b}/kernel", (4 * 2**s, 8)) for s in range(4) for b in range(20)
    ]
    made = plan(every, {}, {})
    (one_row,) = report_rows(made)
    assert (one_row.variable, one_row.shape) == ("stage{0..3}/block{0..19}/kernel", "4x8 .. 32x8")
    (line,) = [line for line in text(made).splitlines() if "block" in line]
    assert line.split()[:5] == ["stage{0..3}/block{0..19}/kernel", "4x8", "..", "32x8", "80"]


def test_a_plan_that_is_piped_is_laid_out_for_80_columns_and_folds_nothing() -> None:
    name = "a/rather/long/name/" * 4 + "kernel"
    shown = text(one([variable(name), variable("b")], scaffold(), checkpoint(name, "b")), width=80)
    lines = shown.splitlines()
    assert f"{name}  2x3" in lines
    assert lines[lines.index(f"{name}  2x3") + 1].startswith("  ")


class Page(HTMLParser):
    """Collects what a page holds, and checks that its elements are closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_needs_nothing_else_and_everything_is_escaped() -> None:
    page = html(example(), f"title {EVIL}")
    parsed = Page(page)
    assert not parsed.tags & {"link", "img", "iframe"}
    assert page.count("<script") == 1, "the search"
    assert not parsed.attributes & {"src", "href", "onclick"}
    assert not re.search(r"url\(|@import|https?://", page)
    assert page.isascii()
    assert parsed.text.count(EVIL) >= 6  # Title, heading, legend, row, unused tensor, summary.


SERVERS = ["/job:ps/task:0", "/job:ps/task:1"]


def test_each_server_is_listed_with_what_it_holds() -> None:
    made = plan([variable("a"), variable("b", (5,)), variable("c")], {}, {})
    placement = VariablePlacement("by_size", {"a": SERVERS[0], "b": SERVERS[1], "c": SERVERS[0]})
    assert placement.lines(made, full=True) == [
        "placement on the cluster (by_size):",
        "  /job:ps/task:0: 2 variables, 48 bytes",
        "    a  24 bytes",
        "    c  24 bytes",
        "  /job:ps/task:1: 1 variable, 20 bytes",
        "    b  20 bytes",
    ]
    assert len(placement.lines(made, full=False)) == 3
    page = Page(html(made, divisions={placement.title: placement.by_device(made)})).text
    assert "placement on the cluster (by_size)" in page
    assert "/job:ps/task:1 20 B 1 variableb 20 B" in page


def test_every_form_of_the_plan_shows_the_placement(tmp_path: Path) -> None:
    cluster = ClusterConfig(local=True, workers=2, ps=2)
    table, as_json, page = (
        runs.run(tmp_path, mode=Mode.plan, cluster=cluster, plan=PlanConfig(format=form), **LINEAR)
        for form in (PlanFormat.table, PlanFormat.json, PlanFormat.html)
    )
    assert [line.strip()[:14] for line in table if "/job:ps" in line] == SERVERS
    found = json.loads("\n".join(as_json))["variables"]
    assert {each["device"] for each in found} == set(SERVERS)
    assert "placement on the cluster (round_robin)" in "\n".join(page)


RUN = {"experiment": "warm", "run_dir": "runs/warm/001", "tracking_uri": "db", "run_id": "r2"}
FIRST = {
    "schema": 2,
    "run": {"experiment": "cnn", "run_dir": "runs/cnn/001", "tracking_uri": "db", "run_id": "r1"},
    "sources": {},
    "variables": {"body/kernel": {"initializer": "Const"}},
}


def _warm() -> RestorationPlan:
    return plan(
        [variable("body/kernel", (3, 2)), variable("head/kernel")],
        {"body": scaffold("body/*", transpose={"body/kernel": [1, 0]})},
        {"body": checkpoint("body/kernel", digest="sha256:ab")},
    )


def _origin(run_id: str = "r1") -> Origin:
    run = {**FIRST["run"], "run_id": run_id}  # type: ignore[dict-item]
    return Origin("experiment:cnn", checkpoint(digest="sha256:ab"), run, FIRST)


def test_every_variable_has_its_origin() -> None:
    found = provenance_document(_warm(), {"body": (_origin(),)}, **RUN)
    assert json.loads(json.dumps(found)) == found
    assert found["run"] == RUN
    assert found["variables"] == {
        "body/kernel": {
            "source_tensor": {
                "source": "body",
                "path": "ckpt/model",
                "tensors": ["body/kernel"],
                "step": 7,
                "digest": "sha256:ab",
                "run_id": "r1",
                "conversions": ["transposed (1, 0)"],
            }
        },
        "head/kernel": {"initializer": "Const"},
    }
    assert found["sources"]["body"] == [_origin().document()]


def test_an_average_of_several_runs_was_written_by_none_of_them() -> None:
    found = provenance_document(_warm(), {"body": (_origin(), _origin("r0"))}, **RUN)
    assert found["variables"]["body/kernel"]["source_tensor"]["run_id"] is None
    assert [each["run"]["run_id"] for each in found["sources"]["body"]] == ["r1", "r0"]


def test_the_chain_goes_back_to_the_first_source() -> None:
    lines = list(chain(provenance_document(_warm(), {"body": (_origin(),)}, **RUN)))
    assert lines == [
        "warm in runs/warm/001, MLflow run r2",
        "  body/kernel <- body: body/kernel @ step 7 (transposed (1, 0))",
        "  1 from initializers: head/kernel",
        "  body: ckpt/model sha256:ab, MLflow run r1",
        "    cnn in runs/cnn/001, MLflow run r1",
        "      1 from initializers: body/kernel",
    ]
