"""What must be restored, and what must not."""

from __future__ import annotations

import pytest

from runner.config.choices import Expect, Missing, StateChoice
from runner.errors import Problem
from tests.tiny.plans import checkpoint, plan, scaffold, slot, variable

NAMES = ("cnn/a", "cnn/b", "head/a")


def problems(expect: dict[str, Expect], missing: tuple[str, ...] = ()) -> tuple[Problem, ...]:
    made = plan(
        [variable(name) for name in NAMES],
        {
            "cnn": scaffold("cnn/*", missing=Missing.init),
            "head": scaffold("head/*", checkpoint=None),
        },
        {"cnn": checkpoint(*(set(NAMES[:2]) - set(missing))), "head": None},
        expect=expect,
    )
    return made.problems


def test_expectations_that_are_met() -> None:
    assert not problems({"cnn": Expect.all, "head": Expect.scratch})
    assert not problems({"cnn": Expect.some}, ("cnn/a",))
    assert not problems({"cnn": Expect.scratch}, NAMES[:2])
    assert not problems({"cnn/*": Expect.all, "re:head/.": Expect.scratch})


@pytest.mark.parametrize(
    ("missing", "expect", "state"),
    [
        (("cnn/a",), Expect.all, "is `all`, but cnn/a would be initialised"),
        (NAMES[:2], Expect.some, "is `some`, but cnn/a, cnn/b would be initialised"),
        ((), Expect.scratch, "is `scratch`, but cnn/a, cnn/b would be restored"),
    ],
)
def test_what_ends_otherwise_is_a_problem(
    missing: tuple[str, ...], expect: Expect, state: str
) -> None:
    (problem,) = problems({"cnn": expect}, missing)
    assert problem.state == f"restoration.expect.cnn {state}"
    assert expect.value not in problem.choices
    (problem,) = problems({"cnn/*": expect}, missing)
    assert problem.state == f"restoration.expect.cnn/* {state}"


def test_a_pattern_is_not_about_slots_that_nobody_asked_for() -> None:
    variables = [variable("a"), slot("a/Adam"), variable("global_step", (), "int64")]
    source = checkpoint("a", "a/Adam")

    def states(state: list[StateChoice], expect: dict[str, Expect]) -> list[str]:
        made = plan(variables, {"net": scaffold("a", state=state)}, {"net": source}, expect=expect)
        return [each.state for each in made.problems]

    weights, both = [StateChoice.weights], [StateChoice.weights, StateChoice.optimizer_slots]
    assert states(weights, {"*": Expect.all, "a*": Expect.all}) == []
    assert states(both, {"*": Expect.all, "a/Adam": Expect.all}) == []
    assert states(weights, {"a/Adam": Expect.all}) == [
        "restoration.expect.a/Adam is `all`, but a/Adam would be initialised"
    ]
    assert states(both, {"a/*": Expect.scratch}) == [
        "restoration.expect.a/* is `scratch`, but a/Adam would be restored"
    ]


def test_an_expectation_of_nothing_is_a_problem() -> None:
    (problem,) = problems({"heat": Expect.all})
    assert problem.state == "restoration.expect: 'heat' concerns no variable"
    assert problem.choices == ("head", "cnn")


def test_a_bad_expression_is_a_problem() -> None:
    (problem,) = problems({"re:(": Expect.all})
    assert problem.state == "restoration.expect holds '('"
