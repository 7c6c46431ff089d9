"""TensorFlow's ten stock hooks, made by a configuration, do what they do in a program."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

import runner
from runner.config.instantiation import References
from runner.errors import RunnerError
from runner.graph.hook_entries import HOOKS
from tests.support.parity import Counting, written_files

TRAIN = "tensorflow.compat.v1.train"
# Numbers that no two runs share.
_TIMED = re.compile(r"global_step/sec: .*|\(\d+\.\d+ sec\)")


def feed(tensor: tf.Tensor, value: float) -> dict[tf.Tensor, float]:
    """Returns the feeds of a FeedFnHook."""
    return {tensor: value}


FEED = {"_target_": f"{__name__}.feed", "_partial_": True, "tensor": "${graph:feed:0}"}
# Class and arguments; `FOLDER` is a folder, and a reference stands for an element of the graph.
HOOK_ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "LoggingTensorHook": (
        "LoggingTensorHook",
        {"tensors": {"product": "${graph:product}"}, "every_n_iter": 2},
    ),
    "LoggingTensorHook of names": (
        "LoggingTensorHook",
        {"tensors": ["product:0"], "every_n_iter": 1},
    ),
    "LoggingTensorHook at the end": (
        "LoggingTensorHook",
        {"tensors": ["product:0"], "at_end": True},
    ),
    "LoggingTensorHook in both ways": (
        "LoggingTensorHook",
        {"tensors": ["product:0"], "every_n_iter": 1, "every_n_secs": 1},
    ),
    "LoggingTensorHook in no way": ("LoggingTensorHook", {"tensors": ["product:0"]}),
    "LoggingTensorHook of an unknown name": (
        "LoggingTensorHook",
        {"tensors": ["unknown:0"], "every_n_iter": 1},
    ),
    "StopAtStepHook": ("StopAtStepHook", {"last_step": 3}),
    "StopAtStepHook after steps": ("StopAtStepHook", {"num_steps": 2}),
    "StopAtStepHook in no way": ("StopAtStepHook", {}),
    "StopAtStepHook in both ways": ("StopAtStepHook", {"last_step": 1, "num_steps": 1}),
    "CheckpointSaverHook": ("CheckpointSaverHook", {"checkpoint_dir": "FOLDER", "save_steps": 2}),
    "CheckpointSaverHook of another name": (
        "CheckpointSaverHook",
        {"checkpoint_dir": "FOLDER", "save_steps": 2, "checkpoint_basename": "other"},
    ),
    "CheckpointSaverHook without the graph": (
        "CheckpointSaverHook",
        {"checkpoint_dir": "FOLDER", "save_steps": 2, "save_graph_def": False},
    ),
    "CheckpointSaverHook in no way": ("CheckpointSaverHook", {"checkpoint_dir": "FOLDER"}),
    "StepCounterHook": ("StepCounterHook", {"every_n_steps": 2, "output_dir": "FOLDER"}),
    "StepCounterHook in both ways": ("StepCounterHook", {"every_n_steps": 2, "every_n_secs": 1}),
    "NanTensorHook": ("NanTensorHook", {"loss_tensor": "${graph:product}"}),
    "NanTensorHook of NaN": ("NanTensorHook", {"loss_tensor": "${graph:nan}"}),
    "NanTensorHook that goes on": (
        "NanTensorHook",
        {"loss_tensor": "${graph:nan}", "fail_on_nan_loss": False},
    ),
    "SummarySaverHook": (
        "SummarySaverHook",
        {"save_steps": 2, "output_dir": "FOLDER", "summary_op": "${graph:summary}"},
    ),
    "SummarySaverHook without a summary": (
        "SummarySaverHook",
        {"save_steps": 2, "output_dir": "FOLDER"},
    ),
    "SummarySaverHook in no way": (
        "SummarySaverHook",
        {"output_dir": "FOLDER", "summary_op": "${graph:summary}"},
    ),
    "GlobalStepWaiterHook": ("GlobalStepWaiterHook", {"wait_until_step": 0}),
    "FinalOpsHook": ("FinalOpsHook", {"final_ops": "${graph:product}"}),
    "FinalOpsHook of an unknown name": ("FinalOpsHook", {"final_ops": "unknown:0"}),
    "FeedFnHook": ("FeedFnHook", {"feed_fn": {**FEED, "value": 3.0}}),
    "FeedFnHook of another shape": ("FeedFnHook", {"feed_fn": {**FEED, "value": [1.0, 2.0]}}),
    "ProfilerHook": ("ProfilerHook", {"save_steps": 2, "output_dir": "FOLDER"}),
    "ProfilerHook without memory": (
        "ProfilerHook",
        {"save_steps": 2, "output_dir": "FOLDER", "show_memory": False},
    ),
    "ProfilerHook in no way": ("ProfilerHook", {"output_dir": "FOLDER"}),
    "an unknown argument": ("StopAtStepHook", {"steps": 1}),
}


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Captures the log of TensorFlow at level INFO."""
    with caplog.at_level(logging.INFO, "tensorflow"):
        yield caplog


class Graph(Counting):
    """A graph whose elements have the names of the references."""

    def __init__(self) -> None:
        super().__init__()
        self.names = {
            "product": self.product,
            "feed:0": self.feed,
            "nan": tf.divide(self.feed - 1.0, self.feed - 1.0),
            "summary": tf.summary.scalar("feed", self.feed),
        }

    def references(self) -> References:
        return References({"graph": self.names}, lambda name: None)

    def arguments(self, node: Any, folder: Path) -> Any:
        """Returns the arguments that a program gives, where a configuration has references."""
        if isinstance(node, dict) and "_target_" in node:
            value = node["value"]
            return lambda: feed(self.feed, value)
        if isinstance(node, dict):
            return {name: self.arguments(part, folder) for name, part in node.items()}
        if isinstance(node, str) and node.startswith("${graph:"):
            return self.names[node[len("${graph:") : -1]]
        return str(folder) if node == "FOLDER" else node


def configured(node: Any, folder: Path) -> Any:
    """Returns a node of the configuration with the folder in it."""
    if isinstance(node, dict):
        return {name: configured(part, folder) for name, part in node.items()}
    return str(folder) if node == "FOLDER" else node


def _first(error: BaseException) -> BaseException:
    """Returns the error that caused the report of a mistake in the configuration."""
    return error if error.__cause__ is None else _first(error.__cause__)


def outcome(row: str, api: Any, folder: Path, logged: pytest.LogCaptureFixture) -> dict[str, Any]:
    """Returns what a hook leaves behind; ours is made as a run makes it."""
    kind, node = HOOK_ROWS[row]
    logged.clear()
    error: type[BaseException] | None = None
    steps: list[Any] = []
    with tf.Graph().as_default():
        graph = Graph()
        try:
            if api is runner:
                target = {"_target_": f"{TRAIN}.{kind}", **configured(node, folder)}
                HOOKS.check({"one": target}, graph.references())
                hook = HOOKS.build("one", target, graph.references())
            else:
                hook = getattr(tf.train, kind)(**graph.arguments(node, folder))
            with api.MonitoredSession(hooks=[hook]) as session:
                while not session.should_stop() and len(steps) < 5:
                    steps.append(session.run(graph.train_op).item())
                    steps.append(session.run(graph.product).item())
        except Exception as raised:  # noqa: BLE001 (whatever it is, both must raise it)
            error = type(_first(raised))
        final = getattr(locals().get("hook"), "final_ops_values", None)
    tf.summary.FileWriterCache.clear()
    log = [_TIMED.sub("", line).replace(str(folder), "") for line in logged.messages]
    return {
        "error": error,
        "steps": steps,
        "final": final,
        "log": [line for line in log if not any(words in line for words in _ONCE)],
        "files": written_files(folder) if folder.exists() else {},
    }


# TensorFlow logs these once, or the first few times in a process.
_ONCE = ("Instructions for updating", "It seems that global step")


@pytest.mark.parametrize("row", HOOK_ROWS)
def test_a_configured_hook_does_what_it_does_in_a_program(
    row: str, tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    theirs = outcome(row, tf.train, tmp_path / "theirs", logged)
    ours = outcome(row, runner, tmp_path / "ours", logged)
    if theirs["error"] is not None and issubclass(ours["error"], RunnerError):
        # Found before a hook is made, so without the log of a session.
        assert row == "an unknown argument"
        return
    assert ours == theirs
