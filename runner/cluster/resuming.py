"""Restores a run's own checkpoint also where another number of workers has saved it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from runner.cluster.replica import Replica
from runner.config.schema import ClusterConfig
from runner.graph.build import saved_as
from runner.graph.experiment import BuiltGraph, Training

_Saver: TypeAlias = tf.compat.v1.train.Saver


def resuming_saver(
    built: BuiltGraph, cluster: ClusterConfig, checkpoints: Path, say: Callable[[str], None]
) -> _Saver:
    """Returns what restores the newest checkpoint, and those that are saved after it.

    Where that has no position that the training input can be set to, the input begins anew.

    Args:
      built: the graph, not finalised.
      cluster: the resolved cluster.
      checkpoints: the folder of the run's checkpoints; there need be none.
      say: is given a line when the input begins anew.
    """
    training = built.training
    newest = tf.train.latest_checkpoint(str(checkpoints))
    if training is None or not training.input_is_saved or newest is None:
        return built.saver
    if _has_position(newest, training):
        return built.saver
    say(
        f"input: begins with its first batch: {Path(newest).name} is of another number of workers, "
        "and batches are dealt out anew"
    )
    with built.graph.as_default(), Replica(cluster).scope():
        return _SaverOfAnyNumber(built, training)


class _SaverOfAnyNumber(_Saver):
    """Restores with the graph's own saver what fits, else without the position in the input."""

    def __init__(self, built: BuiltGraph, training: Training) -> None:
        super().__init__(saved_as(built.variables))
        self._own, self._training = built.saver, training

    def restore(self, sess: tf.compat.v1.Session, save_path: str) -> None:
        if _has_position(save_path, self._training):
            self._own.restore(sess, save_path)
            return
        super().restore(sess, save_path)
        sess.run(self._training.input_initializer)


def _has_position(checkpoint: str, training: Training) -> bool:
    names = tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map()
    return training.input_state.saved_as in names
