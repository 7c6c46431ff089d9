"""The model of a run once more, eagerly, with the values of a session: for callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.graph.eager_model import build_eager_model, variables_of_run
from runner.graph.experiment import overrides_steps
from runner.graph.input_pipeline import TrainingInput
from runner.restoration.model_variables import LEARNING_RATE
from runner.system.user_code import calling


def eager_twin(
    config: RunConfig, source: TrainingInput, variables: Mapping[str, tf.Variable]
) -> EagerTwin:
    """Builds the eager twin of the model that trains with a training input."""
    model: Any = build_eager_model(config, source.element_spec, compiled=True)
    if not overrides_steps(model):
        with calling("model", f"{config.model['_target_']} was evaluated eagerly, for callbacks"):
            # Callbacks read the metrics, which are created when they are used.
            tf.function(model.test_step, autograph=False).get_concrete_function(source.element_spec)
    return EagerTwin(model, variables)


class EagerTwin:
    """A model's eager twin, whose variables take the values of a session, and give them back.

    Args:
      model: built again, eagerly.
      variables: name -> variable of the graph.

    Attributes:
      model: the model.

    Raises:
      ConfigError: when a variable of the model is not in the graph.
    """

    def __init__(self, model: keras.Model, variables: Mapping[str, tf.Variable]) -> None:
        self.model = model
        eager = variables_of_run(model, variables)
        missing = sorted(eager.keys() - variables.keys())
        if missing:
            raise ConfigError.of(
                f"callbacks: the model, built again, has {missing[0]}, which the run lacks",
                "its `_target_` names layers in another way when it is called again",
                "give the layers names",
            )
        self._pairs = {name: (variables[name], variable) for name, variable in eager.items()}
        # Counters and rates, see `pull`.
        self._light = [
            name
            for name, (variable, _) in self._pairs.items()
            if name.endswith((LEARNING_RATE, "/iterations")) and variable.shape.rank == 0
        ]
        # Name -> the value of the session that the twin took.
        self._taken: dict[str, NDArray[Any]] = {}

    def forget(self) -> None:
        """Notes that the session has other values."""
        self._taken = {}

    def pull(self, session: tf.compat.v1.Session, *, weights: bool) -> None:
        """Takes values of the session that it does not have yet: counters and rates, or all."""
        names = self._pairs if weights else self._light
        wanted = [name for name in names if name not in self._taken]
        values = session.run([self._pairs[name][0] for name in wanted]) if wanted else []
        for name, value in zip(wanted, values, strict=True):
            self._pairs[name][1].assign(value)
            self._taken[name] = value

    def push(self, session: tf.compat.v1.Session) -> bool:
        """Gives the session what callbacks have changed; returns whether that is anything."""
        changed = {}
        for name, taken in self._taken.items():
            value = self._pairs[name][1].numpy()
            # By their bytes, as NaN differs from itself.
            if not np.array_equal(np.ravel(value).view(np.uint8), np.ravel(taken).view(np.uint8)):
                changed[name] = value
        load(session, ((self._pairs[name][0], value) for name, value in changed.items()))
        self._taken |= changed
        return bool(changed)


def load(session: tf.compat.v1.Session, values: Iterable[tuple[tf.Variable, Any]]) -> None:
    """Assigns values to variables of a session, without operations of their own.

    The initial value of a variable is fed, a tensor that variables may share.
    """
    feeds: dict[str, Any] = {}
    operations: list[tf.Operation] = []
    for variable, value in values:
        tensor = variable.initializer.inputs[1].name
        if tensor in feeds:
            session.run(operations, feeds)
            feeds, operations = {}, []
        feeds[tensor] = value
        operations.append(variable.initializer)
    if operations:
        session.run(operations, feeds)
