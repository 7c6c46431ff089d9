"""What `${graph:NAME}` in a hook's arguments may stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from runner.experiment import Training


def graph_names(variables: Mapping[str, tf.Variable], training: Training) -> dict[str, Any]:
    """Returns name -> tensor, operation or variable.

    These are `loss` and the other metrics of the step, `metrics` (all of them by name),
    `learning_rate`, `step` (after the train op), `global_step`, `train_op`, `input_seconds`, and
    the variables.
    """
    metrics = dict(training.values)
    if training.learning_rate is not None:
        metrics.setdefault("learning_rate", training.learning_rate)
    return {
        **variables,
        **metrics,
        "metrics": metrics,
        "step": training.step,
        "train_op": training.train_op,
        "input_seconds": training.input_seconds,
    }


def finder(graph: tf.Graph) -> Callable[[str], Any]:
    """Returns what finds a tensor (`name:0`) or an operation (`name`) by TensorFlow's own name."""

    def find(name: str) -> Any:
        try:
            return graph.as_graph_element(name)
        except (KeyError, ValueError):
            return None

    return find
