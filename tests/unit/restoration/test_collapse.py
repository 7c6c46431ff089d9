"""Numbered layers that agree share a row."""

from __future__ import annotations

import random
import re
import time

from runner.restoration.report import Row, collapse


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
