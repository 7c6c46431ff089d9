"""A new graph, and the threads of the process that runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf

from runner.config.schema import RunConfig
from runner.graph.replica import Replica
from runner.internals.tensorflow import gradients_end_with_graphs


def set_threads(config: RunConfig) -> None:
    """Sets the numbers of threads, before TensorFlow creates its thread pools.

    The configuration of a session comes too late: building any function creates the pools of the
    process for good. A later run in the same process keeps them, and logs a warning where it asks
    for other numbers.
    """
    for kind in ("intra", "inter"):
        count = getattr(config.session, f"{kind}_op_threads")
        get = getattr(tf.config.threading, f"get_{kind}_op_parallelism_threads")
        change = getattr(tf.config.threading, f"set_{kind}_op_parallelism_threads")
        # The session handles a negative number: steps run in the caller's thread.
        if count < 0 or count == get():
            continue
        try:
            change(count)
        except RuntimeError:
            tf.compat.v1.logging.warning(
                "session: %d threads asked for, but this process already has %s",
                count,
                get() or "TensorFlow's own number",
            )


@contextmanager
def new_graph(config: RunConfig, replica: Replica) -> Iterator[tf.Graph]:
    """Provides a new default graph with the seed and the global step, placed by `replica`."""
    keras.utils.clear_session()  # Names of layers and seeds count from the start in every graph.
    keras.utils.set_random_seed(config.seed)
    with gradients_end_with_graphs(), tf.Graph().as_default() as graph, replica.scope():
        tf.compat.v1.set_random_seed(config.seed)
        tf.compat.v1.train.get_or_create_global_step()
        yield graph
