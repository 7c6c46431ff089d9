"""How variables find their tensors, and what is reported when they do not."""

from __future__ import annotations

from typing import Any

import pytest

from runner.checkpoints.reader import CheckpointSpec
from runner.config.choices import Missing, StateClass
from runner.planning.variables import VariableSpec
from runner.rules.named_conversions import NAMED_CONVERSIONS
from tests.support.plans import (
    Shape,
    by_name,
    checkpoint,
    one,
    only,
    origins,
    scaffold,
    slot,
    variable,
)

SLOTS = [StateClass.weights, StateClass.optimizer_slots]


KERNEL = [variable("a/k")]
KEY = "m/k/.ATTRIBUTES/VARIABLE_VALUE"
KERNELS = [variable("a/k"), variable("b/k")]
ADAM = [variable("a/k"), slot("a/k/Adam"), slot("a/k/Adam_1")]
EMA = "ExponentialMovingAverage"


@pytest.mark.parametrize(
    ("variables", "rules", "source", "expected"),
    [
        (KERNELS, {"missing": Missing.init}, checkpoint("a/k"), {"a/k": "a/k", "b/k": ""}),
        (KERNELS, {"rename": {"a/": "x/"}}, checkpoint("x/k", "b/k"), {"a/k": "x/k", "b/k": "b/k"}),
        # Slots follow their variable, unless a rule names them.
        (
            ADAM,
            {"state": SLOTS, "rename": {"a/k": "x/w", "a/k/Adam_1": "other/v"}},
            checkpoint("x/w", "x/w/Adam", "other/v"),
            {"a/k": "x/w", "a/k/Adam": "x/w/Adam", "a/k/Adam_1": "other/v"},
        ),
        # What belongs to no variable has its own name.
        (
            [*KERNEL, slot("beta1_power", ()), variable("global_step", ())],
            {"state": [*SLOTS, StateClass.global_step]},
            checkpoint("a/k", shapes={"beta1_power": (), "global_step": ()}),
            {"a/k": "a/k", "beta1_power": "beta1_power", "global_step": "global_step"},
        ),
        # Averages as the weights: TensorFlow's names, by a rename, and Keras'.
        (
            [*KERNELS, variable("a/moving_mean"), variable("a/count", trainable=False)],
            {"use_ema": True, "rename": {"a/k": "x/k"}},
            checkpoint(f"x/k/{EMA}", "adam/net_b_k_average", "a/moving_mean", "a/count"),
            {
                "a/k": f"x/k/{EMA}",
                "b/k": "adam/net_b_k_average",
                "a/moving_mean": "a/moving_mean",
                "a/count": "a/count",
            },
        ),
        # Averages of the graph are a class of their own.
        (
            [*KERNEL, variable(f"a/k/{EMA}")],
            {"state": [StateClass.moving_averages], "rename": {"a/": "b/"}},
            checkpoint("b/k", f"b/k/{EMA}"),
            {"a/k": "", f"a/k/{EMA}": f"b/k/{EMA}"},
        ),
        (KERNEL, {}, checkpoint("layer/0", aliases={"a/k": "layer/0"}), {"a/k": "layer/0"}),
        (KERNEL, {"rename": {"a/k": KEY}}, checkpoint("m/k", keys={KEY: "m/k"}), {"a/k": "m/k"}),
        (
            KERNELS,
            {"rename": {"re:[ab]/k": "shared"}},
            checkpoint("shared"),
            {"a/k": "shared", "b/k": "shared"},
        ),
    ],
)
def test_which_tensor_a_variable_takes(
    variables: list[VariableSpec],
    rules: dict[str, Any],
    source: CheckpointSpec,
    expected: dict[str, str],
) -> None:
    plan = one(variables, scaffold(**rules), source)
    assert not plan.problems
    taken = origins(plan)
    assert taken == {
        name: [f"net: {tensor}"] if tensor else [] for name, tensor in expected.items()
    }
    assert plan.unused == {"net": tuple(set(source.tensors) - set(expected.values()))}


@pytest.mark.parametrize(
    ("rules", "source", "note"),
    [
        ({"use_ema": True}, checkpoint(f"a/k/{EMA}"), "its moving average"),
        ({"rename": {"a/": "c/"}}, checkpoint("a/k"), "no tensor 'c/k': initialised"),
        ({}, checkpoint("a/k", dtype="float64"), "float64 cast to float32"),
    ],
)
def test_a_note_reports_what_is_not_obvious(
    rules: dict[str, Any], source: CheckpointSpec, note: str
) -> None:
    plan = one(KERNELS, scaffold(**{"missing": Missing.init, **rules}), source)
    assert by_name(plan)["a/k"].notes == (note,)


def test_a_weight_without_its_average_is_a_problem() -> None:
    frozen = variable("a/k", frozen=True)
    problem = only(one([frozen], scaffold(use_ema=True, trainable=False), checkpoint("a/k")))
    assert problem.state == f"scaffolds.net: no tensor 'a/k/{EMA}' for the variable a/k"


LSTM = {"lstm/kernel": (3, 8), "lstm/recurrent_kernel": (2, 8), "lstm/bias": (8,)}
TORCH = dict(zip(LSTM, ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0"), strict=True))


@pytest.mark.parametrize(
    ("conversion", "rename", "source", "taken"),
    [
        (
            "tf1_lstm",
            {"lstm/recurrent_kernel": "lstm/kernel"},
            {"lstm/kernel": (5, 8), "lstm/bias": (8,)},
            ["lstm/kernel", "lstm/kernel", "lstm/bias"],
        ),
        (
            "torch_lstm",
            TORCH,
            dict(zip((*TORCH.values(), "bias_hh_l0"), [(8, 3), (8, 2), (8,), (8,)], strict=True)),
            ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0+bias_hh_l0"],
        ),
    ],
)
def test_one_tensor_divides_and_several_join(
    conversion: str, rename: dict[str, str], source: dict[str, Shape], taken: list[str]
) -> None:
    variables = [variable(name, shape) for name, shape in LSTM.items()]
    config = scaffold(convert={"lstm/*": conversion}, rename=rename)
    plan = one(variables, config, checkpoint(shapes=source))
    assert not plan.problems
    assert list(origins(plan).values()) == [[f"net: {name}"] for name in taken]
    assert plan.unused == {"net": ()}


@pytest.mark.parametrize(
    ("rename", "tensors", "state"),
    [
        ({"lstm/bias": "bias_ih"}, ("bias_ih",), "no tensor 'bias_hh' for the variable lstm/bias"),
        ({}, ("lstm/bias",), "no tensor 'lstm.bias_ih_l0' for the variable lstm/bias"),
        (
            {"lstm/bias": "offset"},
            ("offset",),
            "lstm/bias cannot be converted; lstm/bias/Adam cannot be converted",
        ),
        (
            {"lstm/bias": "bias_ih"},
            ("bias_ih", "bias_hh", "bias_ih/Adam", "bias_hh/Adam"),
            "lstm/bias/Adam cannot be converted",
        ),
    ],
)
def test_biases_that_cannot_be_added(
    rename: dict[str, str], tensors: tuple[str, ...], state: str
) -> None:
    variables = [variable("lstm/bias", (8,)), slot("lstm/bias/Adam", (8,))]
    config = scaffold(convert={"lstm/*": "torch_lstm"}, rename=rename, state=SLOTS)
    source = checkpoint(shapes=dict.fromkeys(tensors, (8,)))
    assert one(variables, config, source).problems[0].state == f"scaffolds.net: {state}"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"rename": {"b/": "c/"}}, "rename: the rule 'b/' is never used"),
        ({"rename": {"a/": "a/", "a/k": "x"}}, "rename: the rule 'a/k' is never used"),
        ({"convert": {"b/*": "torch_dense"}}, "convert: the rule 'b/*' is never used"),
        ({"transpose": {"b": [0]}}, "transpose: the rule 'b' is never used"),
        ({"vocabulary": {"b": None}}, "vocabulary: the rule 'b' is never used"),
        ({"rename": {"re:(a)": r"\2"}}, r"rename: re:(a): \2"),
        ({"convert": {"re:*": "torch_dense"}}, "convert: re:*: torch_dense"),
    ],
)
def test_rules_that_do_nothing_or_are_not_valid(changes: dict[str, Any], state: str) -> None:
    problem = only(one([variable("a/k")], scaffold(**changes), checkpoint("a/k")))
    assert problem.state == f"scaffolds.net.{state}"


def test_all_rules_that_are_not_valid_are_reported_at_once() -> None:
    config = scaffold(
        rename={"re:(": "x", "re:a(.*)": r"b\1"},
        transpose={"re:[": [0], "a*": [0]},
        convert={"a": "torch_dens", "b": "torch_dens"},
    )
    problems = one([variable("a")], config, checkpoint("a")).problems
    assert [problem.state.removeprefix("scaffolds.net.") for problem in problems] == [
        "rename: re:(: x",
        "transpose: re:[: [0]",
        "convert: 'torch_dens' is not a named conversion",
    ]
    assert problems[-1].choices[0] == "torch_dense"
    assert set(problems[-1].choices) == set(NAMED_CONVERSIONS)


def test_problems_of_one_dtype_are_one() -> None:
    variables = [variable(f"w{number}") for number in range(40)]
    source = checkpoint(*(spec.name for spec in variables), dtype="int32")
    assert only(one(variables, scaffold(), source)).state == (
        "scaffolds.net: w0 is float32, but its tensor is int32; w1 is float32, but its tensor is "
        "int32; w2 is float32, but its tensor is int32; and 37 more"
    )


OTHER_MODEL = "0 of them used: it seems to belong to another model"
OTHER_VERSION = "1 of them used: it seems to belong to another version of the model"


@pytest.mark.parametrize(
    ("tensors", "cause", "choices"),
    [
        (["lstm/kernel", "head/bias", "head/kernel"], f"3 tensors, {OTHER_MODEL}", ()),
        (
            ["cnn/x1/kernel", "cnn/y7/bias"],
            f"2 tensors, {OTHER_VERSION}",
            ("cnn/x0/kernel: cnn/x1/kernel", "cnn/x2/kernel: cnn/x1/kernel"),
        ),
    ],
)
def test_all_that_is_missing_is_one_problem_with_its_likely_reason(
    tensors: list[str], cause: str, choices: tuple[str, ...]
) -> None:
    variables = [variable(f"cnn/x{number}/kernel") for number in range(8)]
    problem = only(one(variables, scaffold(), checkpoint(*tensors)))
    missing = 8 - ("cnn/x1/kernel" in tensors)
    assert problem.state.startswith(f"scaffolds.net: no tensors for {missing} variables, cnn/x0/")
    assert problem.state.endswith(f" and {missing - 3} more")
    assert problem.cause == f"ckpt/model holds {cause}"
    assert problem.remedy.startswith(
        "map the names in scaffolds.net.rename or rules, which `runner"
    )
    assert problem.choices[:2] == choices


def test_other_shapes_are_one_problem_with_examples() -> None:
    variables = [variable(f"w{number}", (5, 3)) for number in range(40)]
    problem = only(one(variables, scaffold(), checkpoint(*(spec.name for spec in variables))))
    assert problem.state == (
        "scaffolds.net: w0 has shape [5, 3], but its tensor w0 has [2, 3]; "
        "w1 has shape [5, 3], but its tensor w1 has [2, 3]; "
        "w2 has shape [5, 3], but its tensor w2 has [2, 3]; and 37 more"
    )
    assert [choice.split("=")[-1] for choice in problem.choices] == ["pad_or_slice", "init"]


NAMES = [f"cnn/conv{number}/{leaf}" for number in (1, 2) for leaf in ("kernel", "bias")]
VARIABLES = [variable(name, (2, 3) if "kernel" in name else (3,)) for name in NAMES]


def source(old: str, new: str) -> dict[str, Shape]:
    return {spec.name.replace(old, new): spec.tensor.shape for spec in VARIABLES}


@pytest.mark.parametrize(
    ("shape", "tensors", "choices"),
    [
        ((2, 3), {"haed/krnl": (2, 3), "z": (9,)}, ("haed/krnl",)),
        # Tensors of the same shape are offered first.
        ((2, 3), {"head/kernel_1": (9, 9), "features": (2, 3)}, ("features",)),
        ((5,), {"head/kernel_1": (9, 9), "features": (2, 3)}, ("head/kernel_1",)),
    ],
)
def test_a_single_miss_has_its_nearest_names(
    shape: Shape, tensors: dict[str, Shape], choices: tuple[str, ...]
) -> None:
    problem = only(one([variable("head/kernel", shape)], scaffold(), checkpoint(shapes=tensors)))
    assert problem.state == "scaffolds.net: no tensor 'head/kernel' for the variable head/kernel"
    assert problem.cause == "ckpt/model holds 2 tensors, none of that name"
    assert "++scaffolds.net.missing=init" in problem.remedy
    assert problem.choices == choices


def test_layouts_of_pytorch_are_proposed() -> None:
    stored = checkpoint(shapes={"a.weight": (3, 2)})
    problem = only(one([variable("a/kernel")], scaffold(), stored))
    assert problem.remedy.startswith('set scaffolds.net.convert={"*": torch} if')
    assert not one([variable("a/kernel")], scaffold(convert={"*": "torch"}), stored).problems


@pytest.mark.parametrize("rename", [{}, {"cnn/": "nets/"}])
def test_no_rename_is_offered_as_it_could_exchange_layers(rename: dict[str, str]) -> None:
    config = scaffold(rename=rename)
    problem = only(one(VARIABLES, config, checkpoint(shapes=source("cnn/", "features/"))))
    assert problem.remedy.startswith("map the names in scaffolds.net.rename or rules")


def test_slots_that_follow_a_missing_variable_are_not_reported() -> None:
    variables = [*VARIABLES, *(slot(f"{spec.name}/Adam", spec.tensor.shape) for spec in VARIABLES)]
    shapes = source("cnn/", "features/")
    shapes |= {f"{name}/Adam": shape for name, shape in shapes.items()}
    problem = only(one(variables, scaffold(state=SLOTS), checkpoint(shapes=shapes)))
    assert "no tensors for 4 variables" in problem.state


def test_other_names_of_tensors_count_once() -> None:
    paths = {f"layers/{at}": spec.tensor.shape for at, spec in enumerate(VARIABLES)}
    aliases = {f"net/{name}": path for name, path in zip(NAMES, paths, strict=True)}
    problem = only(one(VARIABLES, scaffold(), checkpoint(shapes=paths, aliases=aliases)))
    assert "of which 4 have the sizes of these variables, under other names" in problem.cause


def test_slots_that_alone_are_missing_are_reported() -> None:
    variables = [variable("a"), slot("a/Momentum")]
    problem = only(one(variables, scaffold(state=SLOTS), checkpoint("a", "a/Adam")))
    assert problem.state == "scaffolds.net: no tensor 'a/Momentum' for the variable a/Momentum"
    assert problem.choices == ("a", "a/Adam")


def test_of_a_scaffold_without_variables_no_rule_is_called_unused() -> None:
    (problem,) = one([variable("a")], scaffold("b", rename={"b": "c"}), checkpoint("c")).problems
    assert problem.state.endswith("'b' matches no variable of the model")
