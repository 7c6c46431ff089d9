"""Shapes, layouts and dtypes: what fits, by which steps, and what is told when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.config.choices import ShapePolicy, StateClass
from runner.config.schema import ScaffoldConfig, VocabularyConfig
from runner.planning.plan import RestorationPlan
from runner.planning.variables import Partition, VariableSpec
from tests.support.plans import (
    Shape,
    by_name,
    checkpoint,
    one,
    only,
    scaffold,
    slot,
    source_of,
    variable,
)


def fit(
    config: ScaffoldConfig, shape: Shape, tensor: Shape, old: str = "float32", new: str = "float32"
) -> RestorationPlan:
    """The plan of one variable `w` and one tensor `w`."""
    source = checkpoint(shapes={"w": tensor}, dtype=old)
    return one([variable("w", shape, new)], config, source)


def steps(plan: RestorationPlan, name: str = "w") -> list[str]:
    assert not plan.problems, str(plan.problems[0])
    source_tensor = source_of(plan, name)
    return list(source_tensor.steps)


RESHAPE: dict[str, Any] = {"shape": ShapePolicy.reshape}
PAD: dict[str, Any] = {"shape": ShapePolicy.pad_or_slice}
INIT: dict[str, Any] = {"shape": ShapePolicy.init}
TRANSPOSE: dict[str, Any] = {"transpose": {"w": [1, 0]}}
CONV: dict[str, Any] = {"convert": {"*": "torch_conv"}}
KEPT = ", the rest keeps its initial value"


@pytest.mark.parametrize(
    ("rules", "shape", "tensor", "expected"),
    [
        ({}, (2, 3), (2, 3), []),
        (RESHAPE, (6,), (2, 3), ["reshaped to [6]"]),
        (PAD, (2, 2), (2, 3), ["common part [2, 2] of [2, 3]"]),
        (PAD, (2, 5), (2, 3), [f"common part [2, 3] of [2, 5]{KEPT}"]),
        (PAD, (5, 2), (2, 3), [f"common part [2, 2] of [2, 3] and [5, 2]{KEPT}"]),
        (TRANSPOSE, (3, 2), (2, 3), ["transposed (1, 0)"]),
        (CONV, (3, 3, 8, 16), (16, 8, 3, 3), ["transposed (2, 3, 1, 0)"]),
        (CONV, (3, 8, 16), (16, 8, 3), ["transposed (2, 1, 0)"]),
        (TRANSPOSE | RESHAPE, (6,), (2, 3), ["transposed (1, 0)", "reshaped to [6]"]),
        (TRANSPOSE | PAD, (2, 2), (2, 3), ["transposed (1, 0)", "common part [2, 2] of [3, 2]"]),
    ],
)
def test_by_which_steps_a_tensor_fits(
    rules: dict[str, Any], shape: Shape, tensor: Shape, expected: list[str]
) -> None:
    assert steps(fit(scaffold(**rules), shape, tensor)) == expected


@pytest.mark.parametrize(
    ("rules", "shape", "tensor", "state", "cause"),
    [
        (RESHAPE, (7,), (2, 3), "w has shape [7], but its tensor w has [2, 3]", "of the same"),
        (PAD, (7,), (2, 3), "w has shape [7], but its tensor w has [2, 3]", "of the same shape"),
        (TRANSPOSE, (5, 2), (2, 3), "w has [2, 3], after conversion [3, 2]", "of the same shape"),
        (TRANSPOSE, (3, 2, 1), (2, 3, 1), "w cannot be converted", "axes [1, 0] do not"),
        (CONV, (2,), (2,), "w cannot be converted", "axes [1, 0] do not permute"),
    ],
)
def test_what_does_not_fit_is_a_problem(
    rules: dict[str, Any], shape: Shape, tensor: Shape, state: str, cause: str
) -> None:
    problem = only(fit(scaffold(**rules), shape, tensor))
    assert problem.state.endswith(state)
    assert cause in problem.cause


@pytest.mark.parametrize(
    ("shape", "tensor", "choices"),
    [
        ((3, 4), (4, 3), ("'++{}.transpose={{w:[1,0]}}'", "reshape", "pad_or_slice", "init")),
        (
            (2, 3, 4),
            (4, 2, 3),
            ("'++{}.transpose={{w:[1,2,0]}}'", "reshape", "pad_or_slice", "init"),
        ),
        ((12,), (3, 4), ("reshape", "init")),
        ((5,), (4,), ("pad_or_slice", "init")),
        ((5,), (4, 2), ("init",)),
        ((5,), (), ("init",)),
    ],
)
def test_another_shape_is_a_problem_with_what_would_fix_it(
    shape: Shape, tensor: Shape, choices: tuple[str, ...]
) -> None:
    problem = only(fit(scaffold(), shape, tensor))
    assert problem.state == (
        f"scaffolds.net: w has shape {list(shape)}, but its tensor w has {list(tensor)}"
    )
    key = "scaffolds.net"
    assert problem.choices == tuple(
        choice.format(key) if "{" in choice else f"++{key}.shape={choice}" for choice in choices
    )


def test_shape_init_keeps_the_initializer_and_notes_it() -> None:
    plan = fit(scaffold(**INIT), (2, 3), (4, 3))
    assert not plan.problems
    assert by_name(plan)["w"].source_tensor is None
    assert by_name(plan)["w"].notes == ("w has shape [4, 3]: initialised",)
    assert plan.unused == {"net": ("w",)}


@pytest.mark.parametrize(
    ("old", "new"),
    [("float64", "float32"), ("float32", "bfloat16"), ("float32", "int32"), ("int64", "int32")],
)
def test_a_lossy_cast_needs_permission(old: str, new: str) -> None:
    allowed = fit(scaffold(cast=True), (2,), (2,), old, new)
    assert steps(allowed) == [f"cast to {new}"]
    assert by_name(allowed)["w"].notes == (f"{old} cast to {new}",)
    plan = fit(scaffold(), (2,), (2,), old, new)
    if new == "int32":
        problem = only(plan)
        assert problem.state == f"scaffolds.net: w is {new}, but its tensor is {old}"
        assert problem.cause == f"a cast from {old} to {new} may lose values"
        assert "++scaffolds.net.cast=true" in problem.remedy
    else:
        assert plan == allowed


@pytest.mark.parametrize("cast", [False, True])
def test_strings_are_not_cast(cast: bool) -> None:
    problem = only(fit(scaffold(cast=cast), (2,), (2,), "string", "float32"))
    assert problem.cause == "string and float32 do not convert into each other"
    assert "cast=true" not in problem.remedy


def vocabularies(folder: Path) -> VocabularyConfig:
    (folder / "old.txt").write_text("a\nb\nc\n", encoding="utf-8")
    (folder / "new.txt").write_text("c\nd\na\nb\n", encoding="utf-8")
    return VocabularyConfig(str(folder / "old.txt"), str(folder / "new.txt"))


def test_rows_columns_and_slots_move_with_their_tokens(tmp_path: Path) -> None:
    rows = vocabularies(tmp_path)
    config = scaffold(
        vocabulary={"emb": rows, "out": VocabularyConfig(rows.old, rows.new, axis=-1)},
        state=[StateClass.weights, StateClass.optimizer_slots],
    )
    variables = [variable("emb", (4, 2)), variable("out", (2, 4)), slot("emb/Adam", (4, 2))]
    source = checkpoint(shapes={"emb": (3, 2), "out": (2, 3), "emb/Adam": (3, 2)})
    plan = one(variables, config, source)
    for name, axis in (("emb", 0), ("out", 1), ("emb/Adam", 0)):
        moved = f"3 tokens moved along axis {axis}, 1 keep their initial value"
        assert steps(plan, name) == [moved]


def test_vocabulary_problems(tmp_path: Path) -> None:
    files = vocabularies(tmp_path)
    config = scaffold(vocabulary={"w": files})
    assert "the new vocabulary has 4 tokens, axis 0 only 3" in only(fit(config, (3,), (3,))).cause
    assert "have no common axis 0" in only(fit(config, (), ())).cause
    assert "and [4, 2] have no common axis" in only(fit(config, (4, 2), (3,))).cause
    assert "w has shape [4, 5]" in only(fit(config, (4, 5), (3, 2))).state
    padded = scaffold(vocabulary={"w": files}, shape=ShapePolicy.pad_or_slice)
    assert "w has shape [4, 5]" in only(fit(padded, (4, 5), (3, 2))).state
    files.axis = 1
    assert "have no common axis 1" in only(fit(config, (4,), (3,))).cause
    files.old = str(tmp_path / "none.txt")
    cause = only(fit(config, (4, 2), (3, 2))).cause
    assert cause.startswith(f"the vocabulary {files.old} cannot be read: ")
    assert "No such file or directory" in cause
    files.axis, files.old = 0, vocabularies(tmp_path).old
    for content in (b"a 7\nb 5\n", b"A\nB\n", b""):  # Counts beside tokens; other tokens; none.
        (tmp_path / "new.txt").write_bytes(content)
        assert f"no token of {files.new} is in {files.old}" in only(fit(config, (4,), (3,))).cause
    # A token with the same count in both would be moved, and no other.
    (tmp_path / "new.txt").write_bytes(b"a\t7\nb\t5\n")
    assert "has a tab in every line, such as 'a\\t7'" in only(fit(config, (4,), (3,))).cause
    (tmp_path / "new.txt").write_bytes(b"\xff\xfe")
    files.old = files.new
    assert "cannot be read: 'utf-8' codec" in only(fit(config, (4,), (3,))).cause


def parts(name: str, shape: tuple[int, ...], cut: int) -> list[VariableSpec]:
    return [
        variable(
            f"{name}/part_{number}",
            (stop - start, *shape[1:]),
            partition=Partition(name, shape, (start, *(0 for _ in shape[1:]))),
        )
        for number, (start, stop) in enumerate(((0, cut), (cut, shape[0])))
    ]


PARTITIONED: dict[str, tuple[dict[str, Any], Shape]] = {
    "plain": ({}, (4, 2)),
    "transposed": ({"transpose": {"emb": [1, 0]}}, (2, 4)),
    "padded": (PAD, (3, 3)),
    "vocabulary": ({}, (3, 2)),
    "cast": ({}, (4, 2)),
    "reshaped": (RESHAPE, (8,)),
}


@pytest.mark.parametrize("kind", PARTITIONED)
def test_parts_make_the_whole(kind: str, tmp_path: Path) -> None:
    rules, shape = PARTITIONED[kind]
    config, dtype = scaffold("emb", **rules), "float64" if kind == "cast" else "float32"
    if kind == "vocabulary":
        config.vocabulary = {"emb": vocabularies(tmp_path)}
    source = checkpoint(shapes={"emb": shape}, dtype=dtype)
    value = np.random.default_rng(0).normal(size=shape).astype(dtype)
    initial = np.full((4, 2), -1, np.float32)
    whole = one([variable("emb", (4, 2))], config, source)
    expected = source_of(whole, "emb").convert([value], initial)
    for cut in (1, 2, 3):
        plan = one(parts("emb", (4, 2), cut), config, source)
        assert not plan.problems, str(plan.problems[0])
        values = [
            source_of(plan, assignment.variable.name).convert([value], start)
            for assignment, start in zip(
                plan.assignments, (initial[:cut], initial[cut:]), strict=True
            )
        ]
        np.testing.assert_array_equal(np.concatenate(values), expected)
        assert {value.dtype for value in values} == {np.dtype("float32")}


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ({"emb": (4, 2)}, (["slice [0:3, 0:2]"], ["slice [3:4, 0:2]"])),
        ({"emb/part_0": (3, 2), "emb/part_1": (1, 2)}, ([], [])),
    ],
)
def test_parts_are_slices_of_the_whole_or_were_saved_one_by_one(
    saved: dict[str, Shape], expected: tuple[list[str], list[str]]
) -> None:
    plan = one(parts("emb", (4, 2), 3), scaffold("emb"), checkpoint(shapes=saved))
    assert (steps(plan, "emb/part_0"), steps(plan, "emb/part_1")) == expected
    assert not any(assignment.notes for assignment in plan.assignments)


def test_a_missing_whole_is_reported_once() -> None:
    plan = one(parts("emb", (4, 2), 3), scaffold("emb"), checkpoint("other"))
    assert only(plan).state == "scaffolds.net: no tensor 'emb' for the variable emb"
