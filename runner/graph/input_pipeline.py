"""The training input in the graph: prefetched, timed, and saved with the checkpoints.

It also finds state of a training step that checkpoints do not hold, so that resuming is not exact.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from runner.config.epochs import Epochs
from runner.console import some_of
from runner.internals.tensorflow import is_op_determinism_enabled
from runner.session.fetches import operations_run
from runner.session.short_step import IN_CALLERS_THREAD


@dataclass(frozen=True)
class InputState:
    """The position in the training input, as checkpoints hold it.

    Attributes:
      serialize: serializes the position; fails when it cannot be saved.
      serialize_strictly: fails also when the next batches depend on state outside of the position,
        such as the state of a random generator.
      saved_as: the name of the position in checkpoints, which depends on the number of workers that
        share the batches.
    """

    serialize: tf.Operation
    serialize_strictly: tf.Operation
    saved_as: str


class TrainingInput:
    """An iterator over the training data.

    Attributes:
      initializer: starts at the beginning.
      state: the position, as checkpoints hold it.
      saveable: saves and restores the position, for `tf.compat.v1.train.Saver`.
      epochs: the epochs of the training; None where nothing depends on them.
      is_saved: whether checkpoints can hold the position.
      seconds: how long the step waited for the newest batch, a float64 scalar; set by `next`.
    """

    seconds: tf.Tensor

    def __init__(
        self,
        dataset: tf.data.Dataset,
        *,
        prefetch: bool,
        replicas: int = 1,
        epochs: Epochs | None = None,
        begin: tf.Tensor | None = None,
    ) -> None:
        """Adds the iterator to the graph.

        Args:
          dataset: batches of (features, labels), without end.
          prefetch: whether to prepare batches ahead, as many as TensorFlow finds useful.
          replicas: how many workers share the batches; a position in one worker's share means
            nothing to another number of workers.
          epochs: see the attribute.
          begin: how many batches to pass over in every new session, where checkpoints cannot hold
            the position; None where they can.
        """
        self.epochs, self.is_saved = epochs, begin is None
        with tf.name_scope("input"):
            if begin is not None:
                dataset = dataset.skip(begin)
            if prefetch:
                dataset = dataset.prefetch(tf.data.AUTOTUNE)
            self._dataset = dataset
            self._iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
            self.initializer: tf.Operation = self._iterator.initializer
            self.saveable, self.state, self._resource = _state(self._iterator, replicas)
            # A thread of the pool must not wait for a batch, which the pool may have to prepare; so
            # another thread waits. The caller's thread waits itself, and saves two wake-ups.
            self._in_caller = tf.compat.v1.placeholder_with_default(False, [], "in_callers_thread")
        tf.compat.v1.add_to_collection(IN_CALLERS_THREAD, self._in_caller)

    def next(self) -> tuple[Any, tf.Tensor]:
        """Returns the next batch, and how long the step waited for it in seconds, float64.

        That is 0 where TensorFlow computes deterministically: it refuses to read a clock then.
        """
        timestamp = (
            partial(tf.constant, 0.0, tf.float64) if is_op_determinism_enabled() else tf.timestamp
        )
        before = timestamp()
        with tf.control_dependencies([before]):
            batch = self._next()
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            self.seconds = timestamp() - before
            return batch, self.seconds

    def _next(self) -> Any:
        specs = tf.nest.flatten(self.element_spec)
        if not all(type(spec) is tf.TensorSpec for spec in specs):
            return self._iterator.get_next()  # Composite tensors are decoded by private functions.

        def waiting() -> Any:
            tensors = tf.raw_ops.IteratorGetNextSync(
                iterator=self._resource,
                output_types=[spec.dtype for spec in specs],
                output_shapes=[spec.shape for spec in specs],
                name="IteratorGetNext",  # As in the other branch, for messages.
            )
            return tf.nest.pack_sequence_as(self.element_spec, tensors)

        return tf.cond(self._in_caller, waiting, self._iterator.get_next)

    @property
    def element_spec(self) -> Any:
        """The nested `tf.TypeSpec`s of a batch."""
        return self._dataset.element_spec

    def cardinality(self) -> tf.Tensor:
        """Returns how many batches there are, as `tf.data.Dataset.cardinality`; int64 []."""
        return self._dataset.cardinality()


def without_autotuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset whose parallelism stays fixed, unless its options say otherwise.

    It is for iterators that start again within a run. The autotuning thread of `tf.data` sleeps
    ever longer, up to a minute, and the end of an iterator can wait that long: TensorFlow's
    CancellationManager calls back before it counts as cancelled.
    """
    with warnings.catch_warnings():
        # It warns of values known only in a session; values set in Python are known.
        warnings.filterwarnings("ignore", "To make it possible to preserve tf.data options")
        set_options = dataset.options()
    if set_options.autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _state(iterator: Any, replicas: int) -> tuple[Any, InputState, tf.Tensor]:
    """Returns a saveable of the position, the operations that test it, and the iterator's resource.

    Restoring starts the input first: TensorFlow restores only an initialised iterator.
    """
    saveable = tf.data.experimental.make_saveable_from_iterator(
        iterator, external_state_policy="ignore"
    )
    (spec,) = saveable.specs
    resource = spec.tensor.op.inputs[0]
    if replicas > 1:
        spec.name = f"{spec.name}_of_{replicas}"
    restore = saveable.restore

    def initialise_and_restore(tensors: Any, shapes: Any) -> Any:
        with tf.control_dependencies([iterator.initializer]):
            return restore(tensors, shapes)

    saveable.restore = initialise_and_restore
    strictly = tf.raw_ops.SerializeIterator(
        resource_handle=resource,
        external_state_policy=tf.data.experimental.ExternalStatePolicy.FAIL.value,
    )
    return saveable, InputState(spec.tensor.op, strictly.op, spec.name), resource


# Line of the report -> types of operations with such state. The random ones draw from a generator
# inside the kernel, which every session starts again.
_LOST = {
    "random numbers: {} keeps its state in no checkpoint, so a resumed run draws other numbers; "
    "tf.random.stateless_* and Keras's layers do not": {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    },
    "Python in the step: what {} remembers is in no checkpoint, so a resumed run may differ": {
        "EagerPyFunc",
        "PyFunc",
    },
}
_SHOWN = 3


def not_resumed_exactly(train_op: tf.Operation) -> list[str]:
    """Returns a line for each kind of state in a training step that checkpoints do not hold.

    Keras's layers draw their random numbers from seeds in variables, which checkpoints do hold.
    """
    operations = list(operations_run([train_op]))
    lines = []
    for line, kinds in _LOST.items():
        names = [f"{name} ({kind})" for kind, name in operations if kind in kinds]
        if names:
            lines.append(line.format(some_of(names, _SHOWN)))
    return lines
