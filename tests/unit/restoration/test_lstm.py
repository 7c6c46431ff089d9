"""The steps between LSTM layouts, gate by gate."""

from __future__ import annotations

import numpy as np
import pytest

from runner.restoration.layouts import (
    KERAS,
    TF1,
    AddForgetBias,
    GateOrder,
    JoinGates,
    Sum,
    TakeGate,
)

# Two units: each gate is a block of two columns.
I, F, C, O = (np.full((3, 2), number, np.float32) for number in range(4))  # noqa: E741
IN_TF1 = np.concatenate([I, C, F, O], axis=-1)
IN_KERAS = np.concatenate([I, F, C, O], axis=-1)


def test_gates_change_places() -> None:
    step = GateOrder(TF1, KERAS)
    np.testing.assert_array_equal(step.apply(IN_TF1), IN_KERAS)
    np.testing.assert_array_equal(GateOrder(KERAS, TF1).apply(IN_KERAS), IN_TF1)
    assert step.shape((3, 8)) == (3, 8)
    assert step.describe() == "gates icfo to ifco"


def test_the_forget_bias_is_added_to_its_gate_alone() -> None:
    step = AddForgetBias(KERAS, 1.0)
    bias = np.arange(8, dtype=np.float32)
    assert step.apply(bias).tolist() == [0, 1, 3, 4, 4, 5, 6, 7]
    assert bias.tolist() == list(range(8))
    assert step.shape((8,)) == (8,)
    assert step.describe() == "forget bias +1"


def test_one_gate_and_all_gates() -> None:
    step = TakeGate(KERAS, "c")
    np.testing.assert_array_equal(step.apply(IN_KERAS), C)
    assert step.shape((3, 8)) == (3, 2)
    assert step.describe() == "gate c of ifco"
    joined = JoinGates()
    np.testing.assert_array_equal(joined.apply([I, F, C, O]), IN_KERAS)
    assert joined.shape([(3, 2)] * 4) == (3, 8)
    assert joined.describe() == "gates joined"


def test_a_sum_leaves_its_summands_alone() -> None:
    one = np.ones(3)
    assert Sum().apply([one, one, one]).tolist() == [3, 3, 3]
    assert one.tolist() == [1, 1, 1]
    assert Sum().shape([(3,), (3,)]) == (3,)
    assert Sum().describe() == "summed"


@pytest.mark.parametrize("shape", [(), (3, 6)])
@pytest.mark.parametrize(
    "step", [GateOrder(TF1, KERAS), AddForgetBias(KERAS, 1.0), TakeGate(KERAS, "i")]
)
def test_the_last_axis_holds_four_gates(
    step: GateOrder | AddForgetBias | TakeGate, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="does not hold four gates"):
        step.shape(shape)


def test_tensors_of_different_shapes_do_not_combine() -> None:
    with pytest.raises(ValueError, match=r"the gates have the shapes \[\[2\], \[3\]\]"):
        JoinGates().shape([(2,), (3,)])
    with pytest.raises(ValueError, match=r"the gates have the shapes \[\[\], \[\]\]"):
        JoinGates().shape([(), ()])
    with pytest.raises(ValueError, match=r"the summands have the shapes \[\[2\], \[3\]\]"):
        Sum().shape([(2,), (3,)])
