"""Rules that do nothing, and very many problems of one kind."""

from __future__ import annotations

from runner.errors import Problem
from runner.restoration.layouts import NAMED_CONVERSIONS
from runner.restoration.problems import bad_expressions, combined, unknown_conversions, unused_rule
from tests.tiny.plans import checkpoint, one, scaffold, variable


def problems(count: int) -> dict[str, Problem]:
    return {f"w{number}": Problem(f"state {number}", "why", "how") for number in range(count)}


def test_few_problems_are_told_one_by_one() -> None:
    found = problems(24)
    assert combined("scaffolds.net", "shape", found) == list(found.values())


def test_of_many_the_rest_is_one() -> None:
    told = combined("scaffolds.net", "shape", problems(1030))
    assert len(told) == 25
    assert told[-1] == Problem(
        "scaffolds.net: the same of 1,006 more variables, w24, w25, w26 and 1,003 more",
        "only the first 24 are shown one by one",
        "how",
    )


def test_those_of_one_dtype_are_always_one() -> None:
    (told,) = combined("scaffolds.net", "dtype int32 to float32", problems(2))
    assert told == Problem("state 0: w0, w1", "why", "how")


def test_an_unused_rule_names_what_it_may_mean() -> None:
    problem = unused_rule("scaffolds.net.rename", "cnn/kernels", ["cnn/bias", "cnn/kernel"])
    assert problem.state == "scaffolds.net.rename: the rule 'cnn/kernels' is never used"
    assert problem.choices == ("cnn/kernel", "cnn/bias")


def test_an_unknown_conversion_is_told_once_with_all_that_exist() -> None:
    config = scaffold(convert={"a": "torch_dens", "b": "torch_dens", "c": "torch_conv"})
    (problem,) = unknown_conversions("net", config)
    assert problem.state == "scaffolds.net.convert: 'torch_dens' is no named conversion"
    assert problem.choices[0] == "torch_dense"
    assert set(problem.choices) == set(NAMED_CONVERSIONS)


def test_every_bad_expression_is_told_with_its_place() -> None:
    config = scaffold(
        rename={"re:(": "x", "re:(a)": r"\2", "re:a(.*)": r"b\1"},
        transpose={"re:[": [0], "a*": [0]},
        convert={"re:*": "torch_dense"},
    )
    assert [each.state for each in bad_expressions("net", config)] == [
        "scaffolds.net.rename holds '('",
        r"scaffolds.net.rename holds '\\2'",
        "scaffolds.net.convert holds '*'",
        "scaffolds.net.transpose holds '['",
    ]
    config.convert["a"] = "torch_densee"
    found = one([variable("a")], config, checkpoint("a")).problems
    assert found[-1].state == "scaffolds.net.convert: 'torch_densee' is no named conversion"
    assert len(found) == 5


def test_of_a_scaffold_without_variables_no_rule_is_called_unused() -> None:
    (problem,) = one([variable("a")], scaffold("b", rename={"b": "c"}), checkpoint("c")).problems
    assert problem.state.endswith("'b' matches no variable of the model")
