"""What a plan says of each variable, in words."""

from __future__ import annotations

from runner.checkpoints.reader import TensorSpec
from runner.config.choices import Collision
from runner.errors import Problem
from runner.restoration.conversions import Cast, Transpose
from runner.restoration.html_report import html
from runner.restoration.json_report import document
from runner.restoration.layouts import Sum
from runner.restoration.plan import Assignment, SourceTensor
from runner.restoration.report import origin, rows, shape_text, steps, summary, training
from tests.tiny.plans import checkpoint, one, plan, scaffold, variable


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
