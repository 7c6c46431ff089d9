"""The variables of a graph: their names, their specs for the planner, and their savers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import tensorflow as tf

from runner.checkpoints.reader import TensorSpec
from runner.config.choices import NonFinite
from runner.config.schema import RunConfig, ScaffoldConfig
from runner.graph.built_graph import Training
from runner.graph.input_pipeline import TrainingInput
from runner.internals.tensorflow import array_of_tensor, slice_of
from runner.planning.variables import EMA_SUFFIX, Partition, VariableSpec, classify

ROLLBACKS = "rollbacks"
"""The variable that counts rollbacks."""


def name_variables(variables: Iterable[tf.Variable]) -> dict[str, tf.Variable]:
    """Returns the name of its operation -> variable."""
    return {variable.op.name: variable for variable in variables}


def partition_of(variable: tf.Variable) -> Partition | None:
    """Returns the place of a part in its partitioned variable; None for a whole variable."""
    part = slice_of(variable)
    if part is None:
        return None
    return Partition(part.full_name, tuple(part.full_shape), tuple(part.var_offset))


def variable_specs(
    variables: Mapping[str, tf.Variable],
    trainable: Mapping[str, bool],
    *,
    policies: Mapping[str, ScaffoldConfig],
    training: Training | None,
    initializers: Mapping[str, str] | None = None,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[VariableSpec, ...]:
    """Describes the variables for the planner.

    Args:
      variables: name -> variable.
      trainable: name of a variable of the model -> whether the model lets it train.
      policies: variable name -> the scaffold that owns it.
      training: the training graph, if there is one.
      initializers: variable name -> its initializer, where Keras knows it; else the graph does.
      facts: variable name -> what Keras knows of its layer, see `layer_facts`.
    """
    shared = training.shared_state if training is not None else {}
    wholes = {variable.op.name: whole_name(name, variable) for name, variable in variables.items()}
    specs = []
    for name, variable in variables.items():
        shape, dtype = variable.shape.as_list(), variable.dtype.base_dtype.name
        frozen = name in policies and not policies[name].trainable
        shared_by = dict.fromkeys(wholes[weight] for weight in shared.get(variable.op.name, ()))
        specs.append(
            VariableSpec(
                tensor=TensorSpec(name, tuple(shape), dtype),
                state=classify(wholes[variable.op.name], model=name in trainable),
                trainable=trainable.get(name, False) and not frozen,
                initializer=(initializers or {}).get(name) or _initializer(variable),
                frozen=trainable.get(name, False) and frozen,
                partition=partition_of(variable),
                shared_by=tuple(shared_by),
                **(facts or {}).get(name, {}),
            )
        )
    return tuple(specs)


def rollback_count(config: RunConfig) -> tf.Variable | None:
    """Returns the variable that counts rollbacks, also across resumed runs."""
    if config.train.non_finite.action is not NonFinite["rollback"]:
        return None
    return tf.compat.v1.get_variable(ROLLBACKS, initializer=0, trainable=False)


def saved_as(
    variables: Mapping[str, tf.Variable], averaged: AbstractSet[str] = frozenset()
) -> dict[str, Any]:
    """Returns tensor name -> variable to save; `averaged` go by the names of their averages."""
    saved: dict[str, Any] = {}
    for name, variable in variables.items():
        if partition_of(variable) is not None:
            # The saver writes the parts of one variable as one tensor.
            saved.setdefault(whole_name(name, variable), []).append(variable)
        else:
            saved[f"{name}{EMA_SUFFIX}" if name in averaged else name] = variable
    return saved


class CheckpointSaver(tf.compat.v1.train.Saver):
    """The saver of a run's checkpoints.

    Attributes:
      saved: name in the checkpoints -> what it saves there.
    """

    def __init__(self, saved: Mapping[str, Any], keep: int) -> None:
        super().__init__(saved, max_to_keep=keep, save_relative_paths=True)
        self.saved = saved


class PartialSaver(tf.compat.v1.train.Saver):
    """Restores a part of some checkpoints, and initializes the other variables.

    Args:
      saved: name in the checkpoints -> the variable, for the part.
      others: initializes the other variables.
      whole: restores all other checkpoints.
      lacks: whether only the part of the checkpoint at a prefix is restored.
    """

    def __init__(
        self,
        saved: Mapping[str, Any],
        others: tf.Operation,
        *,
        whole: tf.compat.v1.train.Saver,
        lacks: Callable[[str], bool],
    ) -> None:
        super().__init__(saved)
        self._others, self._whole, self._lacks = others, whole, lacks

    def restore(self, sess: tf.compat.v1.Session, save_path: str) -> None:
        """Restores a checkpoint."""
        if not self._lacks(save_path):
            self._whole.restore(sess, save_path)
            return
        super().restore(sess, save_path)
        sess.run(self._others)


def checkpoint_saver(
    config: RunConfig, saved: Mapping[str, Any], source: TrainingInput | None
) -> CheckpointSaver:
    """Returns the saver of a run's checkpoints, which hold the position in `source` if given."""
    position = {} if source is None else {source.saveable.name: source.saveable}
    return CheckpointSaver({**saved, **position}, config.train.keep_checkpoints)


def whole_name(name: str, variable: tf.Variable) -> str:
    """Returns the name for patterns and checkpoints: for a part, the whole variable's."""
    partition = partition_of(variable)
    return partition.name if partition else name


_PASSED, _COMPUTED = ("Identity", "Cast", "Reshape", "Transpose"), ("AddV2", "Mul")


def _initializer(variable: tf.Variable) -> str:
    """Names the operation that computes the initial value, and a constant as Keras does."""
    assign = variable.initializer
    value = getattr(assign, "op", assign).inputs[1].op
    computed = False
    while value.type in (*_COMPUTED, *_PASSED) and value.inputs:
        computed |= value.type in _COMPUTED
        # A factor, an offset, a shape are constants.
        computing = [tensor for tensor in value.inputs if tensor.op.type != "Const"]
        value = [*computing, *value.inputs][0].op
    if value.type == "RestoreV2":  # tf.compat.v1.train.init_from_checkpoint
        path, name = (tf.get_static_value(tensor).item().decode() for tensor in value.inputs[:2])
        return f"init_from_checkpoint {path}: {name}"
    if value.type in ("Const", "Fill"):
        filled = value.inputs[1].op if value.type == "Fill" else value
        return "Constant" if computed else _constant(filled)
    return str(value.type)


def _constant(operation: tf.Operation) -> str:
    """Returns e.g. `Zeros` or `Constant(0.1)`, and `Constant` for several values."""
    count = operation.outputs[0].shape.num_elements()
    if operation.type != "Const" or not count:
        return "Constant"
    # Restoring feeds the tensor, which tf.get_static_value would forbid.
    values = np.ravel(tf.make_ndarray(operation.get_attr("value")))
    if values.dtype.kind not in "biuf" or (values != values[0]).any():
        return "Constant"
    return _filled_with(values[0])


def _filled_with(value: Any) -> str:
    """Returns the name of the initializer of a variable whose elements are all `value`."""
    return {0.0: "Zeros", 1.0: "Ones"}.get(float(value), f"Constant({value:.4g})")


def initializer_of(variable: tf.Variable) -> str:
    """Returns the name of an initializer that gives a variable its value, or `Random`."""
    value = np.ravel(array_of_tensor(variable.read_value()))
    if value.dtype.kind not in "biuf" or not value.size or value[0] != value[-1]:
        return "Random"
    if (value != value[0]).any():
        return "Random"
    return _filled_with(value[0])
