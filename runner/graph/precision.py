"""Settings of the whole graph: seeds, mixed precision, XLA, threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from runner.config.instantiation import build_target
from runner.config.schema import MODEL_SWITCHES, RunConfig
from runner.errors import ConfigError
from runner.graph.experiment import Model
from runner.graph.optimization import Schedule
from runner.graph.replica import Replica
from runner.internals.preprocessing import adapting_in_graphs


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
    with tf.Graph().as_default() as graph, replica.scope():
        tf.compat.v1.set_random_seed(config.seed)
        tf.compat.v1.train.get_or_create_global_step()
        yield graph


def build_model(config: RunConfig) -> Model:
    """Builds the model; the keys for the runner are not among its arguments."""
    node = {name: value for name, value in config.model.items() if name not in MODEL_SWITCHES}
    with adapting_in_graphs():
        model: Model = build_target("model", node)
    return model


def is_compiled(config: RunConfig) -> bool:
    """Whether XLA compiles the model, its losses and metrics, and in training the gradient."""
    return bool(config.model.get("jit_compile"))


@contextmanager
def dtype_policy(config: RunConfig) -> Iterator[None]:
    """Gives the configured policy to every Keras layer created within."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(config.model.get("dtype_policy", "float32"))
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def full_precision(outputs: Any) -> Any:
    """Converts 16-bit floats of nested outputs to float32, in which losses are computed."""
    return tf.nest.map_structure(
        lambda tensor: (
            tf.cast(tensor, tf.float32) if tensor.dtype in (tf.float16, tf.bfloat16) else tensor
        ),
        outputs,
    )


def scaled_losses(
    config: RunConfig, optimizers: Mapping[Schedule, tf.compat.v1.train.Optimizer]
) -> dict[Schedule, tf.compat.v1.train.Optimizer]:
    """Adds a loss scale to the optimizers for float16, which keeps gradients from vanishing.

    A step whose scaled gradients overflow changes nothing, not even the global step.

    Raises:
      ConfigError: when there are several for float16, because each would have its own scale.
    """
    if config.model.get("dtype_policy") != "mixed_float16":
        return dict(optimizers)
    if list(optimizers) != [Schedule()]:
        raise ConfigError.of(
            "model.dtype_policy is mixed_float16, and scaffolds have schedules of their own",
            "the scale of the loss belongs to one optimizer for all variables",
            "use mixed_bfloat16, or delete freeze_until_step and learning_rate_multiplier",
        )
    scaled = tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer
    return {schedule: scaled(optimizer, "dynamic") for schedule, optimizer in optimizers.items()}
