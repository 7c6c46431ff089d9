"""What must be restored, and what must not."""

from __future__ import annotations

import pytest

from runner.config import Expect, Missing
from runner.errors import Problem
from tests.tiny.plans import checkpoint, plan, scaffold, variable

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


def test_an_expectation_of_nothing_is_a_problem() -> None:
    (problem,) = problems({"heat": Expect.all})
    assert problem.state == "restoration.expect: 'heat' concerns no variable"
    assert problem.choices == ("head", "cnn")


def test_a_bad_expression_is_a_problem() -> None:
    (problem,) = problems({"re:(": Expect.all})
    assert problem.state == "restoration.expect holds '('"
