from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from runner.errors import NonFiniteLossError
from runner.hooks import CheckpointHook, NanLossHook, StopAtStepHook
from tests.tiny.counter import Counter


def _hook(counter: Counter, directory: Path, bad: float, at: int) -> NanLossHook:
    loss = tf.where(counter.step < at, counter.value, bad)
    return NanLossHook(loss, counter.step, directory, "lower the learning rate")


def test_numbers_pass(counter: Counter, tmp_path: Path) -> None:
    assert counter.run([StopAtStepHook(5), _hook(counter, tmp_path, float("nan"), at=6)]) == 5


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_it_stops_where_the_loss_is_no_number(counter: Counter, tmp_path: Path, bad: str) -> None:
    hook = _hook(counter, tmp_path, float(bad), at=3)
    with pytest.raises(NonFiniteLossError, match=f"the loss is {bad} at step 3\n") as caught:
        counter.run([hook, StopAtStepHook(5)])
    (problem,) = caught.value.problems
    assert problem.cause == "no checkpoint was saved before it"
    assert problem.remedy == "lower the learning rate"


def test_as_the_first_hook_it_keeps_the_bad_step_from_being_saved(
    counter: Counter, tmp_path: Path
) -> None:
    hook = _hook(counter, tmp_path, float("nan"), at=3)
    save = CheckpointHook(counter.saver, tmp_path, counter.step, every=1)
    with pytest.raises(NonFiniteLossError, match=r"the last checkpoint before it is .*ckpt-2"):
        counter.run([hook, save, StopAtStepHook(5)])
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-2")
