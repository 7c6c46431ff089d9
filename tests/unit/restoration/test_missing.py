"""What is told of tensors that a checkpoint lacks."""

from __future__ import annotations

import shlex

from hydra.core.override_parser.overrides_parser import OverridesParser

from runner.config.choices import ShapePolicy, StateChoice
from runner.restoration.plan import RestorationPlan
from tests.tiny.plans import Shape, checkpoint, one, scaffold, slot, variable

NAMES = [f"cnn/conv{number}/{leaf}" for number in (1, 2) for leaf in ("kernel", "bias")]
VARIABLES = [variable(name, (2, 3) if "kernel" in name else (3,)) for name in NAMES]


def source(old: str, new: str, flip: bool = False) -> dict[str, tuple[int, ...]]:
    shapes = {each.name.replace(old, new): each.tensor.shape for each in VARIABLES}
    return {name: shape[::-1] if flip else shape for name, shape in shapes.items()}


def test_a_single_miss_has_its_nearest_names() -> None:
    plan = one([variable("head/kernel")], scaffold(), checkpoint("haed/krnl", shapes={"z": (9,)}))
    (problem,) = plan.problems
    assert problem.state == "scaffolds.net: no tensor 'head/kernel' for the variable head/kernel"
    assert problem.cause == "ckpt/model holds 2 tensors, none of that name"
    assert "++scaffolds.net.missing=init" in problem.remedy
    assert problem.choices == ("haed/krnl",)


def test_a_regular_rename_is_ready_to_paste() -> None:
    plan: RestorationPlan = one(
        VARIABLES, scaffold(), checkpoint(shapes=source("cnn/", "features/"))
    )
    (problem,) = plan.problems
    assert problem.state == (
        "scaffolds.net: no tensors for 4 variables, "
        "cnn/conv1/kernel, cnn/conv1/bias, cnn/conv2/kernel and 1 more"
    )
    assert problem.remedy == (
        'in YAML rename: {"cnn/": "features/"}, '
        "or paste '++scaffolds.net.rename={cnn/:features/}'"
    )
    assert problem.choices[0] == "features/conv1/kernel"
    pasted = problem.remedy.partition("or paste ")[2]
    (word,) = shlex.split(pasted)
    rules = OverridesParser.create().parse_override(word).value()
    assert isinstance(rules, dict)
    mended = one(VARIABLES, scaffold(rename=rules), checkpoint(shapes=source("cnn/", "features/")))
    assert not mended.problems


def test_a_rename_must_give_tensors_of_the_same_size() -> None:
    shapes: dict[str, Shape] = dict.fromkeys(source("cnn/", "features/"), (7,))
    plan = one(VARIABLES, scaffold(), checkpoint(shapes=shapes))
    assert len(plan.problems) == 4
    flexible = one(VARIABLES, scaffold(shape=ShapePolicy.init), checkpoint(shapes=shapes))
    assert "rename" in flexible.problems[0].remedy
    assert len(flexible.problems) == 1


def test_tensors_in_another_layout_are_still_found() -> None:
    shapes = source("cnn/", "features/", flip=True)
    plan = one(VARIABLES, scaffold(), checkpoint(shapes=shapes))
    assert '{"cnn/": "features/"}' in plan.problems[0].remedy


def test_rules_that_match_already_come_after_the_new_one() -> None:
    config = scaffold(rename={"cnn/": "nets/"})
    plan = one(VARIABLES, config, checkpoint(shapes=source("cnn/", "features/")))
    (problem,) = plan.problems
    assert problem.remedy == 'put first in scaffolds.net.rename: rename: {"cnn/": "features/"}'


def test_slots_follow_and_are_not_told_apart() -> None:
    variables = [*VARIABLES, *(slot(f"{each.name}/Adam", each.tensor.shape) for each in VARIABLES)]
    shapes = source("cnn/", "features/")
    shapes |= {f"{name}/Adam": shape for name, shape in shapes.items()}
    config = scaffold(state=[StateChoice.weights, StateChoice.optimizer_slots])
    (problem,) = one(variables, config, checkpoint(shapes=shapes)).problems
    assert "no tensors for 4 variables" in problem.state


def test_tensors_of_the_same_shape_are_offered_first() -> None:
    shapes = {"head/kernel_1": (9, 9), "features": (2, 3)}
    (problem,) = one([variable("head/kernel")], scaffold(), checkpoint(shapes=shapes)).problems
    assert problem.choices == ("features",)
    (problem,) = one(
        [variable("head/kernel", (5,))], scaffold(), checkpoint(shapes=shapes)
    ).problems
    assert problem.choices == ("head/kernel_1", "features")


def test_other_names_of_tensors_are_proposed_too() -> None:
    paths = [f"layers/{number}" for number in range(len(VARIABLES))]
    source = checkpoint(
        shapes={path: each.tensor.shape for path, each in zip(paths, VARIABLES, strict=True)},
        aliases={f"net/{name}": path for name, path in zip(NAMES, paths, strict=True)},
    )
    (problem,) = one(VARIABLES, scaffold(), source).problems
    assert problem.choices[0] == "net/cnn/conv1/kernel"
    assert "rename={cnn/:net/cnn/}" in problem.remedy
    mended = one(VARIABLES, scaffold(rename={"re:(.*)": r"net/\1"}), source)
    assert not mended.problems


def test_slots_that_alone_are_missing_are_told() -> None:
    variables = [variable("a"), slot("a/Momentum")]
    config = scaffold(state=[StateChoice.weights, StateChoice.optimizer_slots])
    (problem,) = one(variables, config, checkpoint("a", "a/Adam")).problems
    assert problem.state == "scaffolds.net: no tensor 'a/Momentum' for the variable a/Momentum"
    assert problem.choices == ("a/Adam", "a")


def test_very_many_misses_are_cut_short() -> None:
    variables = [variable(f"w{number}") for number in range(100)]
    plan = one(variables, scaffold(), checkpoint("x"))
    assert len(plan.problems) == 25
    assert plan.problems[-1].state == (
        "scaffolds.net: no tensors for 76 more variables, w24, w25, w26 and 73 more"
    )
    assert plan.problems[-1].cause == (
        "only for the first 24 are the nearest names sought and shown"
    )
