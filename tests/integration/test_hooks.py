"""TensorFlow's hooks and ours, chosen by `_target_` in the `hooks:` section of a config."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf
import yaml

from runner.tracking.run_store import Tracker
from tests.support.configs import LINEAR, PLAIN
from tests.support.runs import directory, run, saved, short, written

CONF = Path(__file__).resolve().parents[2] / "conf" / "hook"
TRAIN = "tensorflow.compat.v1.train"


FED: list[float] = []


def feed(tensor: tf.Tensor, value: float) -> dict[tf.Tensor, float]:
    """Returns the feeds of a FeedFnHook."""
    FED.append(value)
    return {tensor: value}


class Recorder(tf.train.FinalOpsHook):
    """A user's own hook, over a stock one: keeps what the final operations gave."""

    values: Any = None

    def end(self, session: tf.Session) -> None:
        super().end(session)
        Recorder.values = self.final_ops_values


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Captures the log of TensorFlow at level INFO."""
    logger = logging.getLogger("tensorflow")
    logger.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, "tensorflow"):
        yield caplog
    logger.removeHandler(caplog.handler)


def test_every_stock_hook_by_config(tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    events, checkpoints = tmp_path / "events", tmp_path / "checkpoints"
    hooks: dict[str, dict[str, Any]] = {
        "log": {
            "_target_": f"{TRAIN}.LoggingTensorHook",
            "tensors": {"the_loss": "${graph:loss}", "kernel": "${graph:body/kernel}"},
            "every_n_iter": 5,
        },
        "stop": {"_target_": f"{TRAIN}.StopAtStepHook", "last_step": 12},
        "save": {
            "_target_": f"{TRAIN}.CheckpointSaverHook",
            "checkpoint_dir": str(checkpoints),
            "save_steps": 4,
            "saver": "${run:saver}",
        },
        "count": {
            "_target_": f"{TRAIN}.StepCounterHook",
            "every_n_steps": 4,
            "output_dir": str(events),
        },
        "nan": {"_target_": f"{TRAIN}.NanTensorHook", "loss_tensor": "${graph:loss}"},
        "summary": {
            "_target_": f"{TRAIN}.SummarySaverHook",
            "save_steps": 4,
            "output_dir": str(events),
            "summary_op": {
                "_target_": "tensorflow.compat.v1.summary.scalar",
                "name": "scaled_loss",
                "tensor": "${graph:loss}",
            },
        },
        "wait": {"_target_": f"{TRAIN}.GlobalStepWaiterHook", "wait_until_step": 0},
        "final": {
            "_target_": f"{__name__}.Recorder",
            "final_ops": ["${graph:global_step}", "${graph:learning_rate}"],
        },
        "feed": {
            "_target_": f"{TRAIN}.FeedFnHook",
            "feed_fn": {
                "_target_": f"{__name__}.feed",
                "_partial_": True,
                "tensor": "${graph:learning_rate}",
                "value": 0.0,
            },
        },
        "profile": {
            "_target_": f"{TRAIN}.ProfilerHook",
            "save_steps": 6,
            "output_dir": str(tmp_path / "profile"),
        },
    }
    run(tmp_path / "runs", hooks=hooks, **PLAIN)

    known = {name for name in dir(tf.train) if name.endswith("Hook")}
    used = {str(entry["_target_"]).rpartition(".")[2] for entry in hooks.values()}
    assert known - used == {"SessionRunHook", "FinalOpsHook"}  # The base class, and Recorder's.
    assert saved(tmp_path / "runs", "global_step") == 12
    assert any("the_loss = " in line and "kernel = " in line for line in logged.messages)
    assert tf.train.latest_checkpoint(str(checkpoints)).endswith("-12")
    assert (checkpoints / "graph.pbtxt").is_file()
    found = written(events)
    assert [step for step, _ in found["global_step/sec"]] == [5, 9]
    # Each fourth step, or the third: TensorFlow's hook reads the step before or after its update.
    steps = [step for step, _ in found["scaled_loss"]]
    assert steps[0] == 1
    assert {b - a for a, b in itertools.pairwise(steps)} <= {3, 4}
    assert Recorder.values[0] == 12
    assert Recorder.values[1] == pytest.approx(0.01)
    assert list((tmp_path / "profile").glob("timeline-*.json"))
    assert FED  # What a traced step reports is its output: feeding it does not change the step.


def _shipped(name: str, **changes: Any) -> dict[str, Any]:
    """An entry of conf/hook, with some keys changed."""
    return {name: {**yaml.safe_load((CONF / f"{name}.yaml").read_text()), **changes}}


def test_the_shipped_hooks_work_together_and_are_tracked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked: dict[str, dict[int, float]] = {}

    def log(self: Tracker, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            tracked.setdefault(name, {})[step] = value

    monkeypatch.setattr(Tracker, "log_metrics", log)
    hooks = {
        **_shipped("early_stopping", patience=2, min_delta=100.0),
        **_shipped("wall_clock"),
        **_shipped("step_timing", every=4),
        **_shipped("profile", every=1, steps=2),
    }
    assert set(hooks) == {path.stem for path in CONF.glob("*.yaml")}
    decay = {
        "_target_": "keras.optimizers.schedules.PolynomialDecay",
        "initial_learning_rate": 0.01,
        "decay_steps": 20,
        "end_learning_rate": 0.0,
    }
    changes = {
        **LINEAR,
        "optimizer": {"_target_": f"{TRAIN}.AdamOptimizer", "learning_rate": decay},
        "train": short(steps=50, log_every=4, evaluate_every=4),
    }
    lines = run(tmp_path / "runs", hooks=hooks, **changes)
    # The first evaluation, at 4, is the best; those at 8 and 12 exhaust the patience.
    assert saved(tmp_path / "runs", "global_step") == 12
    assert not any("learning_rate" in line for line in lines)
    path = directory(tmp_path / "runs").path
    history = json.loads((path / "early_stopping.json").read_text())
    assert [step for step, _ in history] == [4, 8, 12]
    rates = {step: 0.01 * (21 - step) / 20 for step in (4, 8, 12)}
    assert tracked["train/learning_rate"] == pytest.approx(rates)
    for name in ("time/step", "time/input", "time/compute"):
        assert list(tracked[name]) == [4, 8, 12]
        assert all(value >= 0 for value in tracked[name].values())
