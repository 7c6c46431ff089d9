"""Runs from Python: by the rules of the command line, and without a trace in the process."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hydra.core.global_hydra import GlobalHydra

import runner
from runner.errors import ConfigError, InterruptedRunError, PlanError, RunDirectoryError
from tests.support.configs import PLAIN, tiny
from tests.support.runs import disturbed


def config(folder: Path, **changes: Any) -> dict[str, Any]:
    return asdict(tiny(run_dir=str(folder / "runs"), **{**PLAIN, **changes}))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> runner.Result:
    return runner.run(config(tmp_path_factory.mktemp("door")))


def test_a_run_has_its_history_best_plan_and_model(trained: runner.Result) -> None:
    frame = trained.metrics
    assert list(frame.index) == [5, 10, 15, 20]
    assert frame["train/loss"].notna().all()
    assert list(frame["validation/loss"].dropna().index) == [10, 20]
    best = trained.best
    assert best["loss"] == min(frame["validation/loss"].dropna())
    assert trained.plan is not None
    assert "from initializers" in str(trained.plan)
    assert trained.mlflow_run_id is None
    assert trained.directory is not None
    opened = runner.open_run(trained.directory)
    assert opened.metrics.equals(frame)
    page = opened._repr_html_()
    assert f"step {best['step']}" in page
    assert opened.model(20) is not None
    assert f"FINISHED, {trained.directory}; best: step {best['step']}" in repr(opened)
    assert "validation/loss" in page


def test_its_model_is_the_trained_one(trained: runner.Result, tmp_path: Path) -> None:
    evaluated = runner.run({**asdict(trained.config), "mode": "evaluate"}).evaluated
    data = tf.nest.map_structure(np.asarray, [*_blobs().test()])
    model = trained.model()
    outputs = np.concatenate([model(features) for features, _ in data])
    labels = np.concatenate([labels for _, labels in data])
    losses = keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
    assert np.mean(losses) == pytest.approx(evaluated["loss"], rel=1e-6)
    assert not np.allclose(trained.model("latest").weights[0], 0)
    with pytest.raises(runner.RunnerError, match="step 7"):
        trained.model("7")


def _blobs() -> Any:
    from tests.samples.experiment import Blobs

    return Blobs(batch_size=8, seed=0)


def test_a_run_leaves_no_trace_in_the_process(tmp_path: Path) -> None:
    random.seed(1)
    np.random.seed(2)
    tf.random.set_seed(3)
    keras.utils.clear_session()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        names = [keras.layers.Dense(1).name]
        before = random.getstate(), os.getcwd(), signal.getsignal(signal.SIGINT)
        expected_array = np.random.RandomState(2).rand(3)
        expected = tf.random.normal([2])
        tf.random.set_seed(3)
        runner.run(config(tmp_path))
        assert (random.getstate(), os.getcwd(), signal.getsignal(signal.SIGINT)) == before
        assert (np.random.rand(3) == expected_array).all()
        assert (tf.random.normal([2]).numpy() == expected.numpy()).all()
        names.append(keras.layers.Dense(1).name)
        assert names == ["dense", "dense_1"]
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
        assert not GlobalHydra.instance().is_initialized()
    finally:
        keras.config.set_dtype_policy("float32")


def test_the_state_of_the_process_does_not_change_a_run(
    trained: runner.Result, tmp_path: Path
) -> None:
    keras.utils.set_random_seed(7)
    _ = [keras.layers.Dense(1) for _ in range(5)]
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        again = runner.run(config(tmp_path))
    finally:
        keras.config.set_dtype_policy("float32")
    assert again.metrics.equals(trained.metrics)
    former, latter = trained.model("latest"), again.model("latest")
    for one, other in zip(former.weights, latter.weights, strict=True):
        assert np.array_equal(one, other)


def test_a_signal_saves_and_ends_the_run_and_the_same_call_resumes_it(
    trained: runner.Result, tmp_path: Path
) -> None:
    hooks = disturbed(
        "SignalOnce", step=12, number=int(signal.SIGINT), marker=str(tmp_path / "sent")
    )
    with pytest.raises(InterruptedRunError, match="ended by SIGINT"):
        runner.run(config(tmp_path, hooks=hooks))
    killed = runner.open_run(tmp_path / "runs" / "001")
    assert "KILLED" in killed._repr_html_()
    assert killed.model("latest") is not None
    resumed = runner.run(config(tmp_path, hooks=hooks))
    assert resumed.directory == killed.directory
    assert resumed.plan is None
    assert resumed.metrics["validation/loss"].equals(trained.metrics["validation/loss"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("digit_cnn",), ConfigError, "experiment 'digit_cnn' is not known"),
        (("digits_cnn", ["train.stepz=1"]), ConfigError, "train.stepz is not a key"),
        (("digits_cnn", {"train.steps": 0}), ConfigError, "train.steps is 0"),
        (("digits_cnn", ["optimizer=null"]), ConfigError, "optimizer is null"),
        ((None,), ConfigError, "no experiment is named"),
        ((None, ["mode=evaluate", "run_dir=no"]), RunDirectoryError, "run_dir is no, which is not"),
        (({"name": "mine"},), ConfigError, "data has no value"),
        (({"name": "mine"}, ["seed=1"]), ConfigError, "overrides go with the name"),
    ],
)
def test_mistakes_have_the_message_of_the_command_line(
    arguments: Any, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as raised:
        runner.run(*arguments)
    # The frames are the caller's and the door's.
    assert len(raised.traceback) <= 3
    assert raised.value.__cause__ is None
    with pytest.raises(RunDirectoryError, match="is not a run"):
        runner.open_run(tmp_path)


def test_a_plan_has_no_run(tmp_path: Path) -> None:
    plan = runner.run(config(tmp_path, mode="plan"))
    assert "GlorotUniform" in plan._repr_html_()
    assert repr(plan).endswith(": mode=plan>")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(runner.RunnerError, match="mode=plan has made no run"):
        _ = plan.metrics
    scaffolds = {"a": {"checkpoint": "nowhere", "variables": {"include": ["*"]}}}
    with pytest.raises(PlanError, match="the plan has 1 problem, listed with it"):
        runner.run(config(tmp_path, mode="plan", scaffolds=scaffolds))


def test_an_error_of_user_code_shows_its_frames(tmp_path: Path) -> None:
    model = {"_target_": "tests.samples.faulty.Failing", "when": "run"}
    with pytest.raises(runner.RunnerError) as raised:
        runner.run(config(tmp_path, model=model))
    notes = getattr(raised.value, "__notes__", ["faulty.py"])
    assert any("faulty.py" in note for note in notes)
