"""One run from its warm start to its last step, and the rules that end it or take it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.config.choices import Goal, Initialize, Mode, NonFinite
from runner.config.schema import NonFiniteConfig, RestorationConfig, ScaffoldConfig, VariablesConfig
from runner.errors import (
    CheckpointError,
    ConfigError,
    InterruptedRunError,
    NonFiniteLossError,
    UserCodeError,
)
from runner.training import loop
from tests.conformance.goldens import save_npz
from tests.support.configs import tiny
from tests.support.runs import Runs, disturbed, evaluations, short


def test_a_run_leaves_checkpoints_records_and_its_objective(whole: Runs) -> None:
    lines, directory, record = whole.lines(), whole.directory(), whole.record()
    assert whole.steps() == [10, 20]
    best = json.loads(directory.best_record.read_text())
    assert (record.status, record.objective) == ("FINISHED", best["metrics"]["loss"])
    assert whole.steps("best") == [best["step"]]
    assert evaluations(lines) == [10, 20]
    logged = [line.split()[1] for line in lines if "steps/s" in line]
    assert logged == ["5/20", "10/20", "15/20", "20/20"]
    assert whole.values()["global_step"] == 20
    for file in (directory.config, directory.overrides, directory.plan):
        assert file.stat().st_size > 0


def test_the_last_step_is_evaluated_and_saved_once_whatever_the_rhythm(cheap: Runs) -> None:
    train = short(
        steps=17, log_every="4 steps", evaluate_every="1 hour", checkpoint_every=5,
        keep_checkpoints=3,
    )  # fmt: skip
    _, lines = cheap.run(train=train)
    assert evaluations(lines) == [17]
    assert cheap.steps() == [10, 15, 17]
    logged = [line.split()[1] for line in lines if "steps/s" in line]
    assert logged == [f"{step}/17" for step in (4, 8, 12, 16)]


@pytest.mark.parametrize("thread", ["pool", pytest.param("caller", marks=pytest.mark.soak)])
def test_a_run_survives_a_preemption_and_a_signal(
    runs: Runs, whole: Runs, tmp_path: Path, request: pytest.FixtureRequest, thread: str
) -> None:
    """The session is recovered within the run, then the signal ends it at its last step."""
    if thread == "caller":
        request.getfixturevalue("in_callers_thread")
    runs.changes["hooks"] = {
        name: {"_target_": f"tests.samples.hooks.{name}", "marker": str(tmp_path / name), **more}
        for name, more in (("AbortOnce", {"step": 12}), ("SignalOnce", {"step": 13, "number": 15}))
    }
    with pytest.raises(InterruptedRunError, match="SIGTERM"):
        runs.run()
    assert (runs.record().status, runs.steps()) == ("KILLED", [10, 13])
    assert evaluations(runs.lines()) == [10]
    objective, lines = runs.run()
    assert lines[0] == f"tiny: resumes in {runs.directory().path}"
    assert (evaluations(lines), objective) == ([20], whole.record().objective)
    np.testing.assert_equal(runs.values(), whole.values())


def test_a_hook_may_end_the_run_early(cheap: Runs) -> None:
    stop = {"_target_": "tensorflow.compat.v1.train.StopAtStepHook", "last_step": 7}
    _, lines = cheap.run(hooks={"stop": stop})
    assert (cheap.record().status, cheap.steps()) == ("FINISHED", [7])
    assert evaluations(lines) == [7]
    assert "ended at step 7 of 20: hooks.stop stopped it" in lines


def _poisoned(after: int) -> dict[str, Any]:
    return {"_target_": "tests.samples.experiment.Blobs", "poison_after": after}


def test_a_loss_of_nan_stops_the_run(cheap: Runs) -> None:
    data = _poisoned(13)
    with pytest.raises(NonFiniteLossError, match=r"the loss is nan at step 14\n") as caught:
        cheap.run(data=data)
    (problem,) = caught.value.problems
    assert problem.cause.endswith(f"is {cheap.directory().checkpoints / 'model.ckpt-10'}")
    assert problem.remedy.endswith("optimizer.learning_rate=0.005")
    assert (cheap.record().status, cheap.steps()) == ("FAILED", [10])
    # The same command continues from the last checkpoint, to the same end.
    with pytest.raises(NonFiniteLossError):
        cheap.run(data=data)
    assert cheap.lines()[0] == f"tiny: resumes in {cheap.directory().path}"
    assert cheap.count() == 1


def test_a_rollback_lowers_the_rate_until_it_is_an_error(cheap: Runs) -> None:
    rollback = NonFiniteConfig(NonFinite["rollback"], rollbacks=2, learning_rate_scale=0.1)
    train = short(checkpoint_every=4, non_finite=rollback)
    with pytest.raises(NonFiniteLossError, match="at step 7, after 2 rollbacks"):
        cheap.run(data=_poisoned(6), train=train)
    # The poison is in the data, so no rate helps; the input went back with the weights.
    values = cheap.values()
    assert [values["global_step"], values["learning_rate_scale"]] == [4, 1.0]
    assert cheap.record().status == "FAILED"


def test_stop_ends_a_run_in_good_order_and_saves_no_nan(cheap: Runs) -> None:
    train = short(checkpoint_every=4, non_finite=NonFiniteConfig(NonFinite["stop"]))
    lines = cheap.shown(data=_poisoned(6), train=train)
    assert "training stops because the loss is nan at step 7" in lines
    assert "step 7 is not saved" in lines
    assert cheap.values()["global_step"] == 4
    assert cheap.record().status == "FINISHED"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("Once", r"data\.train\(\) ended before step 20"),
        ("Nothing", r"the training data are empty\n.*data\.train\(\) ended before its first batch"),
    ],
)
def test_data_that_end_are_an_error_and_not_the_end_of_training(
    cheap: Runs, data: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        cheap.run(data={"_target_": f"tests.samples.odd.{data}"})
    assert cheap.record().status == "FAILED"


def test_validation_data_without_an_example_make_no_run(cheap: Runs) -> None:
    with pytest.raises(ConfigError, match=r"data\.validation\(\) gives no example"):
        cheap.run(data={"_target_": "tests.samples.odd.NoValidation"})
    assert not cheap.folder.exists()


def test_training_data_start_anew_where_the_configuration_says_so(
    cheap: Runs, tmp_path: Path
) -> None:
    """After an error of the run, and in a recovered session of the same process."""
    changes: dict[str, Any] = {
        "data": {"_target_": "tests.samples.odd.Generated"},
        "train": short(save_input=False, checkpoint_every=5, keep_checkpoints=9),
        "hooks": {
            name: disturbed(name, step=step, marker=str(tmp_path / name))["disturb"]
            for name, step in (("FailOnce", 8), ("AbortOnce", 13))
        },
    }
    with pytest.raises(UserCodeError, match="the hook failed"):
        cheap.run(**changes)
    cheap.run(**changes)
    assert (tmp_path / "AbortOnce").exists()
    assert (cheap.record().status, cheap.steps()) == ("FINISHED", [5, 10, 15, 20])


def test_averages_are_what_is_evaluated_and_exported(plain: Runs) -> None:
    accuracy = tiny().metrics
    train = short(steps=10, ema_decay=0.9, objective="validation/accuracy", goal=Goal.maximize)
    plain.changes |= {"metrics": accuracy, "train": train}
    plain.run()
    objective, (line,) = plain.run(mode=Mode.evaluate)
    assert line.endswith(f"accuracy {objective:.4g}")
    plain.shown(mode=Mode.export)
    prefix = tf.train.latest_checkpoint(str(plain.directory().best))
    average = tf.train.load_variable(prefix, "head/kernel/ExponentialMovingAverage")
    weight = tf.train.load_variable(prefix, "head/kernel")
    values = tf.train.load_checkpoint(str(plain.directory().export / "variables" / "variables"))
    (value,) = [
        values.get_tensor(name)
        for name, shape in values.get_variable_to_shape_map().items()
        if shape == [*average.shape]
    ]
    assert (value == average).all()
    assert not (value == weight).all()


def _bias(folder: Path, value: float, **changes: Any) -> dict[str, ScaffoldConfig]:
    path = folder / "weights.npz"
    save_npz(path, **{"body/bias": np.full(4, value, np.float32)})
    return {"bias": ScaffoldConfig(VariablesConfig(["body/bias"]), str(path), **changes)}


def test_a_warm_start_is_verified_frozen_until_its_step_and_lacks_what_is_optional(
    plain: Runs, tmp_path: Path
) -> None:
    scaffolds = _bias(tmp_path, 3.0, freeze_until_step=2, learning_rate_multiplier=0.5)
    head = VariablesConfig(["head/*"])
    scaffolds["head"] = ScaffoldConfig(head, str(tmp_path / "nowhere"), optional=True)
    restoration = RestorationConfig(verify=True, initialize=Initialize.remaining)
    train = short(steps=4, log_every=4, evaluate_every=4, checkpoint_every=2)
    _, lines = plain.run(scaffolds=scaffolds, restoration=restoration, train=train)
    assert any("head: 2 variables (10 values) from initializers" in line for line in lines)
    provenance = json.loads((plain.directory().path / "provenance.json").read_text())
    assert list(provenance["sources"]) == ["bias"]
    assert "initializer" in provenance["variables"]["head/bias"]

    def value(step: int, name: str = "body/bias") -> Any:
        return tf.train.load_variable(f"{plain.directory().checkpoints}/model.ckpt-{step}", name)

    assert np.array_equal(value(2), np.full(4, 3.0))
    assert np.any(value(2, "body/bias/Adam"))  # Its moments follow its gradients meanwhile.
    # Adam moves each value by about its learning rate, 0.01 * 0.5, in the first steps.
    moved = np.abs(value(4) - 3.0)
    assert np.all(moved > 0)
    assert np.all(moved <= 0.0101)
    plan = (plain.directory().path / "plan.txt").read_text()
    assert "trains from step 2 at rate x0.5" in plan


def test_nan_in_a_source_that_must_be_finite_is_an_error(plain: Runs, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="body/bias"):
        plain.run(scaffolds=_bias(tmp_path, np.nan, finite=True))
    assert plain.record().status == "FAILED"
    assert not plain.directory().has_checkpoint()


def test_the_ready_check_leaves_a_variable_on_its_device() -> None:
    with tf.Graph().as_default():
        with tf.device("/cpu:1"):
            tf.get_variable("v", [2])
        ready, metadata = loop._ready_op(), tf.RunMetadata()
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            options = tf.RunOptions(output_partition_graphs=True)
            assert session.run(ready, options=options, run_metadata=metadata).tolist() == [b"v"]
    devices = {node.name: node.device for part in metadata.partition_graphs for node in part.node}
    assert devices["v"].endswith("CPU:1")
