"""How variables find their tensors."""

from __future__ import annotations

from typing import Any

import pytest

from runner.config.choices import Missing, StateChoice
from runner.config.schema import ScaffoldConfig
from runner.errors import Problem
from runner.restoration.plan import RestorationPlan
from runner.restoration.variables import StateClass
from tests.tiny.plans import by_name, checkpoint, one, origins, scaffold, slot, variable

SLOTS = [StateChoice.weights, StateChoice.optimizer_slots]


def only(plan: RestorationPlan) -> Problem:
    (problem,) = plan.problems
    return problem


def test_variables_take_the_tensors_of_their_names() -> None:
    plan = one([variable("a/k"), variable("b/k")], scaffold("a/*"), checkpoint("a/k", "b/k"))
    assert origins(plan) == {"a/k": ["net: a/k"], "b/k": []}
    assert plan.unused == {"net": ("b/k",)}
    assert not plan.problems


def test_renames_apply_to_slots_through_their_variable() -> None:
    variables = [variable("a/k"), slot("a/k/Adam"), slot("a/k/Adam_1")]
    source = checkpoint("x/w", "x/w/Adam", "other/v")
    rules = {"a/k": "x/w", "a/k/Adam_1": "other/v"}
    plan = one(variables, scaffold(state=SLOTS, rename=rules), source)
    assert not plan.problems
    assert origins(plan) == {
        "a/k": ["net: x/w"],
        "a/k/Adam": ["net: x/w/Adam"],
        "a/k/Adam_1": ["net: other/v"],
    }


def test_state_without_a_variable_takes_its_own_name() -> None:
    variables = [
        variable("a/k"),
        slot("a/k/Adam"),
        slot("beta1_power", ()),
        variable("global_step", ()),
    ]
    source = checkpoint("a/k", "a/k/Adam", shapes={"beta1_power": (), "global_step": ()})
    plan = one(variables, scaffold(state=[*SLOTS, StateChoice.global_step]), source)
    assert not plan.problems
    assert all(each.pieces for each in plan.assignments)


def test_averages_are_restored_as_the_weights() -> None:
    variables = [variable("a/k"), variable("a/moving_mean"), variable("a/count", trainable=False)]
    source = checkpoint("a/k", "a/k/ExponentialMovingAverage", "a/moving_mean", "a/count")
    plan = one(variables, scaffold(use_ema=True), source)
    assert not plan.problems
    assert origins(plan) == {
        "a/k": ["net: a/k/ExponentialMovingAverage"],
        "a/moving_mean": ["net: a/moving_mean"],
        "a/count": ["net: a/count"],
    }
    assert by_name(plan)["a/k"].notes == ("its moving average",)
    assert by_name(plan)["a/count"].notes == ("no moving average is kept of what does not train",)


def test_averages_follow_renames_and_keras_names() -> None:
    variables = [variable("a/k"), variable("b/k")]
    source = checkpoint("x/k/ExponentialMovingAverage", "adam/net_b_k_average")
    plan = one(variables, scaffold(use_ema=True, rename={"a/": "x/"}), source)
    assert origins(plan) == {
        "a/k": ["net: x/k/ExponentialMovingAverage"],
        "b/k": ["net: adam/net_b_k_average"],
    }


def test_a_weight_without_its_average_is_a_problem() -> None:
    frozen = variable("a/k", frozen=True)
    problem = only(one([frozen], scaffold(use_ema=True, trainable=False), checkpoint("a/k")))
    assert problem.state == (
        "scaffolds.net: no tensor 'a/k/ExponentialMovingAverage' for the variable a/k"
    )
    assert problem.cause == "use_ema asks for moving averages, and of 'a/k' there is none"
    assert problem.remedy == (
        "set ++scaffolds.net.use_ema=false; an average of another name is then taken by a rename "
        "to it: {a/k: NAME}"
    )


def test_moving_averages_of_the_graph_are_a_class_of_their_own() -> None:
    variables = [variable("a/k"), variable("a/k/ExponentialMovingAverage")]
    assert variables[1].state is StateClass.MOVING_AVERAGE
    config = scaffold(state=[StateChoice.moving_averages], rename={"a/": "b/"})
    plan = one(variables, config, checkpoint("b/k", "b/k/ExponentialMovingAverage"))
    assert origins(plan) == {
        "a/k": [],
        "a/k/ExponentialMovingAverage": ["net: b/k/ExponentialMovingAverage"],
    }


def test_a_tensor_is_found_by_its_other_name() -> None:
    source = checkpoint("layer-0/kernel", aliases={"dense/kernel": "layer-0/kernel"})
    plan = one([variable("dense/kernel")], scaffold(), source)
    assert origins(plan) == {"dense/kernel": ["net: layer-0/kernel"]}
    assert by_name(plan)["dense/kernel"].notes == ("layer-0/kernel is also called dense/kernel",)
    assert plan.unused == {"net": ()}


def test_two_variables_may_share_a_tensor_and_it_shows() -> None:
    config = scaffold(rename={"re:[ab]/k": "shared"})
    plan = one([variable("a/k"), variable("b/k")], config, checkpoint("shared"))
    assert not plan.problems
    assert by_name(plan)["a/k"].notes == ("shared is also taken by b/k",)
    assert by_name(plan)["b/k"].notes == ("shared is also taken by a/k",)


def test_one_tensor_divides_and_several_join() -> None:
    variables = [
        variable("lstm/kernel", (3, 8)),
        variable("lstm/recurrent_kernel", (2, 8)),
        variable("lstm/bias", (8,)),
    ]
    fused = one(
        variables,
        scaffold(convert={"lstm/*": "tf1_lstm"}, rename={"lstm/recurrent_kernel": "lstm/kernel"}),
        checkpoint(shapes={"lstm/kernel": (5, 8), "lstm/bias": (8,)}),
    )
    assert not fused.problems
    assert origins(fused)["lstm/recurrent_kernel"] == ["net: lstm/kernel"]
    torch = one(
        variables,
        scaffold(
            convert={"lstm/*": "torch_lstm"},
            rename={
                "lstm/kernel": "weight_ih_l0",
                "lstm/recurrent_kernel": "weight_hh_l0",
                "lstm/bias": "bias_ih_l0",
            },
        ),
        checkpoint(
            shapes={
                "weight_ih_l0": (8, 3),
                "weight_hh_l0": (8, 2),
                "bias_ih_l0": (8,),
                "bias_hh_l0": (8,),
            }
        ),
    )
    assert not torch.problems
    assert origins(torch)["lstm/bias"] == ["net: bias_ih_l0+bias_hh_l0"]
    assert torch.unused == {"net": ()}


def test_a_partner_that_is_missing_is_named() -> None:
    config = scaffold(convert={"lstm/*": "torch_lstm"}, rename={"lstm/bias": "bias_ih"})
    plan = one([variable("lstm/bias", (8,))], config, checkpoint(shapes={"bias_ih": (8,)}))
    assert only(plan).state == "scaffolds.net: no tensor 'bias_hh' for the variable lstm/bias"


def test_a_name_that_a_conversion_cannot_use() -> None:
    config = scaffold(convert={"lstm/*": "torch_lstm"})
    problem = only(
        one([variable("lstm/bias", (8,))], config, checkpoint(shapes={"lstm/bias": (8,)}))
    )
    assert problem.state == "scaffolds.net: lstm/bias cannot be converted"
    assert "does not name the tensor bias_ih" in problem.cause


def test_slots_of_a_sum_are_a_problem() -> None:
    variables = [variable("lstm/bias", (8,)), slot("lstm/bias/Adam", (8,))]
    config = scaffold(
        convert={"lstm/*": "torch_lstm"}, rename={"lstm/bias": "bias_ih"}, state=SLOTS
    )
    names = ("bias_ih", "bias_hh", "bias_ih/Adam", "bias_hh/Adam")
    problem = only(one(variables, config, checkpoint(shapes=dict.fromkeys(names, (8,)))))
    assert problem.state == (
        "scaffolds.net: bias_ih/Adam + bias_hh/Adam cannot be converted for lstm/bias/Adam"
    )


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"rename": {"b/": "c/"}}, "scaffolds.net.rename: the rule 'b/' is never used"),
        (
            {"rename": {"a/": "a/", "a/k": "x"}},
            "scaffolds.net.rename: the rule 'a/k' is never used",
        ),
        (
            {"convert": {"b/*": "torch_dense"}},
            "scaffolds.net.convert: the rule 'b/*' is never used",
        ),
        ({"transpose": {"b": [0]}}, "scaffolds.net.transpose: the rule 'b' is never used"),
        ({"vocabulary": {"b": None}}, "scaffolds.net.vocabulary: the rule 'b' is never used"),
        ({"rename": {"re:(": "x"}}, "scaffolds.net.rename holds '('"),
        ({"transpose": {"re:(": [0]}}, "scaffolds.net.transpose holds '('"),
        (
            {"convert": {"a/*": "torch_dens"}},
            "scaffolds.net.convert: 'torch_dens' is no named conversion",
        ),
    ],
)
def test_rules_that_do_nothing_or_are_not_valid(changes: dict[str, Any], state: str) -> None:
    problem = only(one([variable("a/k")], scaffold(**changes), checkpoint("a/k")))
    assert problem.state == state


def test_an_unknown_conversion_hides_no_other_problem() -> None:
    config = scaffold(convert={"a/*": "torch_dens"})
    plan = one([variable("a/k"), variable("b/k", (5,))], config, checkpoint("a/k", "b/k"))
    states = [each.state for each in plan.problems]
    assert states[0] == "scaffolds.net.convert: 'torch_dens' is no named conversion"
    assert states[1].startswith("scaffolds.net: b/k has shape [5]")
    assert len(states) == 2


def test_missing_init_says_which_tensor_was_looked_for() -> None:
    config = scaffold(missing=Missing.init, rename={"b/": "c/"})
    plan = one([variable("a/k"), variable("b/k")], config, checkpoint("a/k"))
    assert not plan.problems
    assert origins(plan) == {"a/k": ["net: a/k"], "b/k": []}
    assert by_name(plan)["b/k"].notes == ("no tensor 'c/k': initialised",)


def test_problems_of_one_dtype_are_one() -> None:
    variables = [variable(f"w{number}") for number in range(40)]
    source = checkpoint(*(each.name for each in variables), dtype="int32")
    problem = only(one(variables, scaffold(), source))
    assert problem.state == (
        "scaffolds.net: float32 variables have int32 tensors: w0, w1, w2 and 37 more"
    )


def test_very_many_problems_of_one_kind_are_cut_short() -> None:
    variables = [variable(f"w{number}", (5,)) for number in range(40)]
    plan = one(variables, scaffold(), checkpoint(*(each.name for each in variables)))
    assert len(plan.problems) == 25
    assert plan.problems[-1].state == (
        "scaffolds.net: the same of 16 more variables, w24, w25, w26 and 13 more"
    )
    assert plan.problems[-1].cause == "only the first 24 are shown one by one"


def test_settings_of_a_scaffold_have_a_default() -> None:
    assert ScaffoldConfig().state == [StateChoice.weights, StateChoice.batch_norm]
