"""Our hooks and the rules of training, chosen by config and seen in what a run leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlflow
import pytest
import tensorflow.compat.v1 as tf
import yaml

from runner.config.choices import Mode, NonFinite
from runner.config.schema import NonFiniteConfig, TrackingConfig, TrainConfig
from runner.errors import NonFiniteLossError
from runner.tracking.tracking_directory import TrackingDirectory
from tests.tiny.runs import directory, run, saved, written

CONF = Path(__file__).resolve().parents[2] / "conf" / "hook"


def shipped(name: str, **changes: Any) -> dict[str, Any]:
    """An entry of conf/hook, with some keys changed."""
    return {name: {**yaml.safe_load((CONF / f"{name}.yaml").read_text()), **changes}}


def _train(**changes: Any) -> TrainConfig:
    return TrainConfig(
        **{"steps": 20, "log_every": 5, "evaluate_every": 10, "checkpoint_every": 10, **changes}
    )


def test_the_shipped_hooks_work_together(tmp_path: Path) -> None:
    hooks = {
        **shipped("early_stopping", patience=2, min_delta=100.0),
        **shipped("wall_clock"),
        **shipped("tensorboard", every="2 steps"),
        **shipped("step_timing", every=3),
        **shipped("memory", every=3),
        **shipped("profile", every=1, steps=2),
    }
    assert set(hooks) == {path.stem for path in CONF.glob("*.yaml")}
    run(tmp_path, hooks=hooks, train=_train(steps=50, evaluate_every=4))
    # The first evaluation, at 4, is the best; those at 8 and 12 exhaust the patience.
    assert saved(tmp_path, "global_step") == 12
    path = directory(tmp_path).path
    history = json.loads((path / "early_stopping.json").read_text())
    assert [step for step, _ in history] == [4, 8, 12]
    found = written(path)
    assert [step for step, _ in found["train/learning_rate"]] == [2, 4, 6, 8, 10, 12]
    assert found["train/learning_rate"][0][1] == pytest.approx(0.01)
    assert [step for step, _ in found["validation/loss"]] == [4, 8, 12]
    assert [value for _, value in found["validation/loss"]] == pytest.approx(
        [value for _, value in history]
    )


@pytest.mark.usefixtures("forked_followers")
def test_what_hooks_record_is_tracked_with_the_learning_rate(
    tmp_path: Path, database: Path
) -> None:
    uri = f"sqlite:///{database}"
    optimizer = {
        "_target_": "tensorflow.compat.v1.train.AdamOptimizer",
        "learning_rate": {
            "_target_": "keras.optimizers.schedules.PolynomialDecay",
            "initial_learning_rate": 0.01,
            "decay_steps": 20,
            "end_learning_rate": 0.0,
        },
    }
    lines = run(
        tmp_path / "runs",
        hooks={**shipped("step_timing", every=5), **shipped("memory", every=5)},
        tracking=TrackingConfig(uri),
        optimizer=optimizer,
        train=_train(),
    )
    client = mlflow.MlflowClient(uri)
    path = directory(tmp_path / "runs").path
    run_id = TrackingDirectory(path).position(uri).run_id
    assert run_id is not None
    rates = client.get_metric_history(run_id, "train/learning_rate")
    assert {each.step: each.value for each in rates} == pytest.approx(
        {5: 0.008, 10: 0.0055, 15: 0.003, 20: 0.0005}
    )
    for name in ("time/step", "time/input", "time/compute", "memory/peak_mib"):
        history = client.get_metric_history(run_id, name)
        assert [each.step for each in history] == [5, 10, 15, 20]
        assert all(each.value >= 0 for each in history)
    assert not any("learning_rate" in line for line in lines)


def _poisoned(after: int) -> dict[str, Any]:
    return {"_target_": "tests.tiny.experiment.Blobs", "poison_after": after}


def test_a_rollback_lowers_the_rate_until_it_is_an_error(tmp_path: Path) -> None:
    train = _train(
        checkpoint_every=4,
        non_finite=NonFiniteConfig(NonFinite["rollback"], rollbacks=2, learning_rate_scale=0.1),
    )
    with pytest.raises(NonFiniteLossError, match="at step 7, after 2 rollbacks"):
        run(tmp_path, data=_poisoned(6), train=train)
    # The poison is in the data, so no rate helps; the input went back with the weights.
    assert saved(tmp_path, "global_step") == 4
    assert saved(tmp_path, "learning_rate_scale") == 1.0
    assert directory(tmp_path).require().status == "FAILED"


def test_stop_ends_a_run_in_good_order_and_saves_no_nan(tmp_path: Path) -> None:
    train = _train(checkpoint_every=4, non_finite=NonFiniteConfig(NonFinite["stop"]))
    lines = run(tmp_path, data=_poisoned(6), train=train)
    assert "training stops because the loss is nan at step 7" in lines
    assert "step 7 is not saved" in lines
    assert (saved(tmp_path, "global_step"), directory(tmp_path).require().status) == (4, "FINISHED")


def test_averages_are_what_is_evaluated_and_exported(tmp_path: Path) -> None:
    train = _train(ema_decay=0.9, accumulate=2)
    run(tmp_path, train=train)
    best = json.loads(directory(tmp_path).best_record.read_text())
    lines = run(tmp_path, train=train, mode=Mode.evaluate)
    assert ": test  loss" in lines[0]
    run(tmp_path, train=train, mode=Mode.export)
    prefix = tf.train.latest_checkpoint(str(directory(tmp_path).best))
    assert prefix.endswith(f"-{best['step']}")
    name = "head/kernel"
    average = tf.train.load_variable(prefix, f"{name}/ExponentialMovingAverage")
    weight = tf.train.load_variable(prefix, name)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.saved_model.load(session, ["serve"], str(directory(tmp_path).export))
        (exported,) = [each for each in tf.global_variables() if each.shape == average.shape]
        value = session.run(exported)
    assert (value == average).all()
    assert not (value == weight).all()


def test_an_input_that_cannot_be_saved_is_told_at_the_start(tmp_path: Path) -> None:
    lines = run(tmp_path, data={"_target_": "tests.tiny.odd.FromGenerator"}, train=_train())
    told = [index for index, line in enumerate(lines) if "position is not saved" in line]
    first_step = [index for index, line in enumerate(lines) if line.startswith("step 5/20")]
    assert len(told) == 1
    assert told < first_step
    assert saved(tmp_path, "global_step") == 20
    directory(tmp_path).update(status="RUNNING")
    assert any(
        "resumes" in line
        for line in run(tmp_path, data={"_target_": "tests.tiny.odd.FromGenerator"}, train=_train())
    )


def test_a_rhythm_may_be_a_text(tmp_path: Path) -> None:
    lines = run(tmp_path, train=_train(log_every="4 steps", evaluate_every="1 hour"))
    assert [line.split()[1] for line in lines if "steps/s" in line] == [
        f"{step}/20" for step in (4, 8, 12, 16, 20)
    ]
    assert [line.split()[1] for line in lines if "  validation  " in line] == ["20"]
