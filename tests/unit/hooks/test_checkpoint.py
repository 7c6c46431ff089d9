"""Saving: the newest checkpoints, the best one, the position of the input."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from runner.config.choices import Goal
from runner.errors import ConfigError, NonFiniteLossError
from runner.graph.input_pipeline import InputState
from runner.hooks import (
    BestCheckpoint,
    CheckpointHook,
    FiniteCheck,
    InputStateHook,
    SavePolicy,
    StopAtStepHook,
)
from runner.hooks.checkpoint import another_saver
from tests.samples.counter import Counter
from tests.samples.hooks import FailOnce


def _steps(directory: Path) -> list[int]:
    return sorted(int(path.stem.rpartition("-")[2]) for path in directory.glob("*.index"))


def _hook(counter: Counter, directory: Path, every: int) -> CheckpointHook:
    return CheckpointHook(counter.saver, directory, counter.step, every)


def test_it_saves_at_multiples_and_once_at_the_end(counter: Counter, tmp_path: Path) -> None:
    counter.run([StopAtStepHook(7), _hook(counter, tmp_path, every=3)])
    assert _steps(tmp_path) == [6, 7]  # The saver keeps two.
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-7")
    assert tf.train.load_variable(str(tmp_path), "global_step") == 7
    assert not list(tmp_path.glob("*.meta"))
    assert not list(tmp_path.glob("graph*"))


def test_a_resumed_session_removes_the_oldest_and_saves_the_last_step_once(
    counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    save = counter.saver.save

    def count(session: tf.Session, path: str, global_step: int, **kwargs: bool) -> str:
        saved.append(global_step)
        return str(save(session, path, global_step=global_step, **kwargs))

    monkeypatch.setattr(counter.saver, "save", count)
    for last in (6, 6, 9):
        counter.run([StopAtStepHook(last), _hook(counter, tmp_path, every=3)], own=tmp_path)
    # Resumed at its last step it has nothing to save.
    assert saved == [3, 6, 9]
    assert _steps(tmp_path) == [6, 9]


def test_where_others_train_meanwhile_the_step_is_that_of_the_save(
    counter: Counter, tmp_path: Path
) -> None:
    updates = counter.step_variable.assign_add(10)

    class _Others(tf.train.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            run_context.session.run(updates)

    hook = CheckpointHook(counter.saver, tmp_path, counter.step, 1)
    counter.run([_Others(), StopAtStepHook(12), hook])
    assert _steps(tmp_path) == [11, 22]
    assert tf.train.load_variable(str(tmp_path), "global_step") == 22


def test_nothing_is_saved_after_an_error(counter: Counter, tmp_path: Path) -> None:
    fail = FailOnce(1, str(tmp_path / "marker"))
    with pytest.raises(ValueError, match="the hook failed"):
        counter.run([fail, _hook(counter, tmp_path, every=1)])
    assert _steps(tmp_path) == []


def _best(counter: Counter, directory: Path, goal: Goal = Goal.minimize) -> BestCheckpoint:
    return BestCheckpoint(counter.saver, directory, directory / "best.json", "loss", goal)


@pytest.mark.parametrize(
    ("goal", "values", "kept", "step"),
    [
        (Goal.minimize, [3.0, 1.0, 2.0], [True, True, False], 2),
        (Goal.maximize, [3.0, 1.0, 4.0], [True, False, True], 3),
        (Goal.minimize, [1.0, 1.0], [True, False], 1),
        (Goal.minimize, [math.nan, 5.0, math.nan], [True, True, False], 2),
        (Goal.maximize, [math.nan, 5.0, math.nan], [True, True, False], 2),
        (Goal.maximize, [math.nan, math.nan], [True, False], 1),
    ],
)
def test_the_best_is_kept(
    counter: Counter, tmp_path: Path, goal: Goal, values: list[float], kept: list[bool], step: int
) -> None:
    best = _best(counter, tmp_path, goal)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        answers = []
        for number, value in enumerate(values, start=1):
            session.run(counter.train_op)
            answers.append(best.offer(session, {"loss": value, "other": 0.5}, number))
    assert answers == kept
    assert _steps(tmp_path) == [step]
    assert tf.train.load_variable(str(tmp_path), "global_step") == step
    record = json.loads((tmp_path / "best.json").read_text())
    assert record["step"] == step
    assert record["metrics"]["other"] == 0.5
    assert str(best.best()) == str(values[step - 1])


def test_the_best_one_is_apart_from_the_newest_and_known_to_a_resumed_run(
    counter: Counter, tmp_path: Path
) -> None:
    newest, best = tmp_path / "newest", tmp_path / "best"
    best.mkdir()
    hook = CheckpointHook(another_saver(counter.saver, 3), newest, counter.step, 1)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert _best(counter, best).best() is None
        for step, loss, kept in ((5, 2.0, True), (6, 3.0, False), (7, 1.0, True)):
            assert _best(counter, best).offer(session, {"loss": loss}, step) is kept
    counter.run([StopAtStepHook(4), hook, _hook(counter, tmp_path / "two", every=1)])
    assert (_steps(best), _steps(newest), _steps(tmp_path / "two")) == ([7], [2, 3, 4], [3, 4])


def _poisoned(counter: Counter, at: int) -> FiniteCheck:
    """A check over a weight that becomes NaN at a step; the saver must know it."""
    with tf.control_dependencies([counter.train_op]):
        weight = tf.get_variable("w", initializer=0.0, use_resource=True)
        counter.train_op = weight.assign(tf.where(counter.step < at, 1.0, float("nan"))).op
    counter.saver = tf.train.Saver(max_to_keep=2, save_relative_paths=True)
    return FiniteCheck({"dense/kernel": weight})


def test_what_is_not_finite_is_not_saved(counter: Counter, tmp_path: Path) -> None:
    finite = _poisoned(counter, at=4)
    refused: list[str] = []
    taken = SavePolicy(finite, lambda error: refused.append(str(error)))
    hook = CheckpointHook(counter.saver, tmp_path / "taken", counter.step, 2, taken)
    assert counter.run([hook, StopAtStepHook(7)]) == 7
    assert [line.splitlines()[0] for line in refused] == [
        f"step {step} is not saved" for step in (4, 6, 7)
    ]
    assert _steps(tmp_path / "taken") == [2]
    hook = CheckpointHook(counter.saver, tmp_path, counter.step, 1, SavePolicy(finite))
    with pytest.raises(NonFiniteLossError, match="step 4 is not saved") as caught:
        counter.run([hook, StopAtStepHook(6)])
    assert "NaN or infinity in dense/kernel" in str(caught.value)
    assert _steps(tmp_path) == [2, 3]


def test_only_the_first_of_many_names_are_shown(counter: Counter, tmp_path: Path) -> None:
    policy = SavePolicy(FiniteCheck({name: tf.Variable(float("inf")) for name in "abcde"}))
    hook = CheckpointHook(counter.saver, tmp_path, counter.step, 1, policy)
    with pytest.raises(NonFiniteLossError, match="NaN or infinity in a, b, c and 2 more"):
        counter.run([hook])


def test_the_best_is_not_kept_when_it_is_not_finite(counter: Counter, tmp_path: Path) -> None:
    finite = _poisoned(counter, at=1)
    best = BestCheckpoint(
        *(counter.saver, tmp_path, tmp_path / "best.json", "loss", Goal.minimize),
        SavePolicy(finite),
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert best.offer(session, {"loss": 2.0}, 0)
        session.run(counter.train_op)
        assert not best.offer(session, {"loss": 1.0}, 1)
    assert best.best() == 2.0


class _Session:
    """Fails with the given errors in turn, and remembers what is run."""

    def __init__(self, *errors: Exception) -> None:
        self.ran: list[Any] = []
        self._errors = list(errors)

    def run(self, fetched: Any) -> None:
        self.ran.append(fetched)
        if self._errors:
            raise self._errors.pop(0)


def _try(*errors: Exception) -> tuple[list[str], list[Any]]:
    """Returns the warnings, and what is run in the first two steps."""
    lines: list[str] = []
    operations: Any = ("serialize", "strictly", "position")
    hook, session = InputStateHook(InputState(*operations), lines.append), _Session(*errors)
    hook.after_create_session(SimpleNamespace(), SimpleNamespace())
    for _ in range(2):
        hook.after_run(SimpleNamespace(session=session), SimpleNamespace())
    return lines, session.ran


def test_the_position_of_the_input_is_tried_once_and_must_be_one_that_can_be_saved() -> None:
    assert _try() == ([], ["strictly"])
    refused = tf.errors.FailedPreconditionError(None, None, "no checkpoint")
    with pytest.raises(ConfigError, match="cannot be saved\n  cause: no checkpoint"):
        _try(refused, refused)
    (line,), ran = _try(refused)
    assert line.startswith("input: a resumed run continues at the same place of the data, but sees")
    assert line.endswith(": no checkpoint")
    assert ran == ["strictly", "serialize"]


@pytest.mark.parametrize("lost", [tf.errors.UnavailableError, tf.errors.AbortedError])
def test_a_lost_server_is_a_matter_of_recovery(lost: type[tf.errors.OpError]) -> None:
    error, refused = lost(None, None, "gone"), tf.errors.FailedPreconditionError(None, None, "no")
    with pytest.raises(lost, match="gone"):
        _try(error)
    with pytest.raises(lost, match="gone"):
        _try(refused, error)


def test_the_reason_is_not_the_message_between_servers() -> None:
    text = """PyFunc is stateful.
Additional GRPC error information from remote target /job:ps while calling /tensorflow.Worker:
:UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"Socket closed"}
\t [[{{node SerializeIterator}}]]"""
    (line,), _ = _try(tf.errors.FailedPreconditionError(None, None, text))
    assert ": PyFunc is stateful." in line
