"""Warm-starts models of eager TensorFlow 2: Keras models, modules, mappings of variables.

    plan = runner.warm_start(model, {
        "cnn": {"variables": {"include": ["cnn/*"]}, "checkpoint": "pretrained/cnn.keras"},
    })

The planner and its rules are the same as in runs, without a run, a session or Hydra.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.checkpoints.locate import Artifacts, is_mlflow_uri
from runner.checkpoints.reader import CheckpointReader, TensorSpec
from runner.config.choices import StateClass
from runner.config.schema import RestorationConfig, ScaffoldConfig, TrackingConfig
from runner.errors import ConfigError, described_type
from runner.internals.keras import finalize
from runner.planning.model_variables import (
    addresses,
    eager_variables,
    layer_facts,
    tensorflow_variable,
    which_train,
)
from runner.planning.optimizer_slots import LEARNING_RATE, keras_slots
from runner.planning.optimizer_state import kind_of, named_state
from runner.planning.plan import Assignment, RestorationPlan
from runner.planning.sources import Source, open_sources, read_warm_start
from runner.planning.variables import (
    VariableSpec,
    classify,
    owner_of,
    owners_of_weights,
)
from runner.planning.weights_layout import plan_located, weights_layout
from runner.restoration.eager_plan import WarmStartPlan
from runner.restoration.engine import Assigner, restore_values
from runner.restoration.reading import NonFiniteTensors
from runner.system.array_file import ArrayFile
from runner.tracking import open_store

_LOGGER = logging.getLogger(__name__)


def plan(
    model: Any,
    scaffolds: Any,
    *,
    optimizer: Any = None,
    input_shape: Any = None,
    restoration: RestorationConfig | Mapping[str, Any] | None = None,
) -> WarmStartPlan:
    """Plans a warm start: reads names, shapes and dtypes alone, and changes no value.

    Args:
      model: a Keras model or layer, a `tf.Module`, or a mapping name -> variable. Names are Keras's
        paths without the model's own name (`cnn/conv1/kernel`), of a module its attributes joined
        by `/`.
      scaffolds: name -> the keys of `scaffolds.NAME` in a configuration, or a `ScaffoldConfig`; or
        the path of a YAML file that holds such a mapping, alone or below `scaffolds`.
      optimizer: a Keras optimizer whose slots are to be planned too; it is built when it is not. By
        default the optimizer of a compiled model, if a scaffold's `state` asks for slots.
      input_shape: builds a Keras model that is not built, as `model.build` takes it.
      restoration: the keys of `restoration` in a configuration: `collision`, `expect`, `verify`. By
        default the ones in the YAML file, if any.

    Returns:
      The plan, with everything that is wrong in its `problems`.

    Raises:
      ConfigError: when scaffolds or rules are not valid, or the model has no variables.
    """
    return _prepare(model, scaffolds, optimizer, input_shape, restoration).plan


def warm_start(
    model: Any,
    scaffolds: Any,
    *,
    optimizer: Any = None,
    input_shape: Any = None,
    restoration: RestorationConfig | Mapping[str, Any] | None = None,
) -> WarmStartPlan:
    """Gives a model's variables their values from several checkpoints, all of them or none.

    Every replica of `tf.distribute.MirroredStrategy` gets them. Variables of a scaffold with
    `trainable: false` become untrainable, so call it before `compile`. Every value is read and
    checked before the first is assigned, most of them twice, so that memory does not grow with the
    model. It takes the arguments of `plan`.

    Returns:
      The plan that was restored.

    Raises:
      ConfigError: when scaffolds or rules are not valid, or the model has no variables.
      PlanError: when the plan has problems; nothing is changed then.
      CheckpointError: when a value cannot be read, or is not finite where it must be; nothing is
        changed then. Also when `verify` finds a difference.
    """
    prepared = _prepare(model, scaffolds, optimizer, input_shape, restoration)
    prepared.restore()
    return prepared.plan


class WarmStart(keras.callbacks.Callback):
    """A callback of `keras.Model.fit` that calls `runner.warm_start` where training begins.

    It does nothing if the optimizer has already taken steps: when
    `keras.callbacks.BackupAndRestore` resumes, and in a second `fit`. Variables of a scaffold with
    `trainable: false` stay untrainable even so. Put it after `BackupAndRestore`, or the pretrained
    checkpoints are read for nothing. It takes the arguments of `runner.plan`.

    Attributes:
      plan: the plan that was restored; None before, and where nothing was to be done.
    """

    def __init__(
        self,
        scaffolds: Any,
        *,
        restoration: RestorationConfig | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.plan: WarmStartPlan | None = None
        self._scaffolds, self._restoration = scaffolds, restoration

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Warm-starts the model, unless it has trained; raises what `runner.warm_start` does."""
        steps = int(self.model.optimizer.iterations)
        if steps:
            variables = eager_variables(self.model)
            configs, rules = read_warm_start(self._scaffolds, self._restoration)
            for name in _frozen(variables, configs, rules, addresses(self.model)):
                variables[name].trainable = False
            _LOGGER.warning("%s has trained %d steps: no warm start", self.model.name, steps)
            return
        self.plan = warm_start(self.model, self._scaffolds, restoration=self._restoration)


@dataclass(frozen=True)
class _WarmStart:
    """A plan, with its variables by name and its sources by scaffold."""

    model: Any
    plan: WarmStartPlan
    variables: Mapping[str, Any]
    sources: Mapping[str, Source]
    verify: bool

    def restore(self) -> None:
        """Assigns every value of the plan, once all have been read."""
        readers = {name: source.reader for name, source in self.sources.items()}
        assigner = _EagerAssigner(self.variables)
        restore_values(
            self.plan, readers, assigner, non_finite=NonFiniteTensors(), verify=self.verify
        )
        finalize(self.model)
        for assignment in self.plan.assignments:
            if assignment.variable.frozen:
                self.variables[assignment.variable.name].trainable = False


def restore_model(
    model: keras.Model, plan: RestorationPlan, readers: Mapping[str, CheckpointReader]
) -> None:
    """Assigns the variables of a model as the plan of a run says, whose names are the same.

    Raises:
      CheckpointError: when a value cannot be read; nothing is changed then.
    """
    variables = eager_variables(model)
    assignments = (a for a in plan.assignments if a.variable.name in variables)
    part = replace(plan, assignments=tuple(assignments))
    restore_values(part, readers, _EagerAssigner(variables))
    finalize(model)


@contextmanager
def unchanged(variables: Iterable[Any]) -> Iterator[None]:
    """Gives variables their values back after the block; a file holds them, not memory."""
    with tempfile.TemporaryFile() as file:
        values = ArrayFile(file)
        places = [(variable, values.append(np.asarray(variable.numpy()))) for variable in variables]
        try:
            yield
        finally:
            for variable, place in places:
                variable.assign(values.read(place))


class _EagerAssigner(Assigner):
    """Restores eager variables."""

    all_or_none = True

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._variables = {
            name: tensorflow_variable(variable) for name, variable in variables.items()
        }

    def batches(self, assignments: Sequence[Assignment]) -> list[list[Assignment]]:
        """See `Assigner.batches`; nothing is gained by assigning several at once."""
        return [[assignment] for assignment in assignments]

    def read(self, names: Sequence[str]) -> dict[str, list[NDArray[Any]]]:
        """See `Assigner.read`."""
        return {
            name: [
                np.asarray(replica.numpy())
                for replica in getattr(self._variables[name], "values", [self._variables[name]])
            ]
            for name in names
        }

    def assign(self, values: Mapping[str, NDArray[Any]]) -> None:
        """See `Assigner.assign`."""
        for name, value in values.items():
            self._variables[name].assign(value)


def _prepare(
    model: Any, scaffolds: Any, optimizer: Any, input_shape: Any, restoration: Any
) -> _WarmStart:
    if not tf.executing_eagerly():
        raise ConfigError.of(
            "TensorFlow does not execute eagerly here",
            "in a graph, values are assigned by a session",
            "call it outside of tf.function and tf.Graph; sessions have runner.Scaffold",
        )
    configs, rules = read_warm_start(scaffolds, restoration)
    if input_shape is not None and not getattr(model, "built", True):
        model.build(input_shape)
    variables = eager_variables(model)
    qualified = addresses(model)
    frozen = _frozen(variables, configs, rules, qualified)
    trains = {**which_train(model, variables), **dict.fromkeys(frozen, False)}
    trained = {name: variable for name, variable in variables.items() if trains[name]}
    if optimizer is None and any(_OF_OPTIMIZERS & {*config.state} for config in configs.values()):
        optimizer = getattr(model, "optimizer", None)
    slots: dict[str, tf.Variable] = {}
    if optimizer is not None:
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            state, remedy = f"optimizer is {described_type(optimizer)}", "pass model.optimizer"
            raise ConfigError.of(state, "it must be a Keras optimizer", remedy)
        _build(optimizer, [*trained.values()], model)
        slots = _slots(optimizer, variables)
    facts = layer_facts(model)
    specs = [
        VariableSpec(
            _tensor(name, variable),
            classify(name, model=True),
            trains[name],
            initializer="",
            frozen=name in frozen,
            **facts.get(name, {}),
        )
        for name, variable in variables.items()
    ]
    located, sources = open_sources(configs, _artifacts(configs))
    is_of_keras = isinstance(model, keras.Layer)
    plan = plan_located(
        [*specs, *_slot_specs(slots, trained, variables)],
        configs,
        located,
        rules=rules,
        layout=partial(weights_layout, model, variables) if is_of_keras else None,
        slots=keras_slots({name: tuple(slot.shape) for name, slot in slots.items()}),
    )
    origins = {name: source.origins for name, source in sources.items()}
    name = str(getattr(model, "name", "") or type(model).__name__)
    return _WarmStart(
        model,
        WarmStartPlan(**vars(plan), origins=origins, model=name),
        {**variables, **slots},
        sources,
        rules.verify,
    )


def _build(optimizer: Any, trained: Sequence[Any], model: Any) -> None:
    """Creates the slots of a Keras optimizer that is not built, where the model's variables are."""
    if not optimizer.built:
        strategy = getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()
        with strategy.scope():
            optimizer.build(list(trained))


def _slots(optimizer: Any, variables: Mapping[str, Any]) -> dict[str, tf.Variable]:
    """Returns name -> variable of a built optimizer that trains some of `variables`.

    The learning rate is left out, and so are slots of other variables.
    """
    names = {id(tensorflow_variable(variable)): name for name, variable in variables.items()}
    named = named_state(optimizer, kind_of(optimizer), lambda trained: names.get(id(trained), ""))
    return {
        name: variable
        for variable, name in named
        if not name.startswith("/") and not name.endswith(f"/{LEARNING_RATE}")
    }


def _slot_specs(
    slots: Mapping[str, tf.Variable], trained: Iterable[str], variables: Mapping[str, Any]
) -> list[VariableSpec]:
    return [
        VariableSpec(
            _tensor(name, slot),
            classify(name, model=False),
            trainable=False,
            initializer="",
            # Adam needs the count of steps together with the slots of all variables.
            shared_by=() if owner_of(name, variables) else tuple(trained),
        )
        for name, slot in slots.items()
    ]


_OF_OPTIMIZERS = {StateClass.optimizer_slots, StateClass.moving_averages}


def _frozen(
    variables: Mapping[str, Any],
    scaffolds: Mapping[str, ScaffoldConfig],
    rules: RestorationConfig,
    qualified: Mapping[str, str],
) -> frozenset[str]:
    """Returns the variables that would train if their scaffold did not say `trainable: false`.

    Raises:
      ConfigError: when one of them is a `tf.Variable`, whose `trainable` cannot be changed.
    """
    owners = owners_of_weights(variables, scaffolds, rules.collision, qualified)
    frozen = frozenset(
        name
        for name, owner in owners.items()
        if not scaffolds[owner].trainable and variables[name].trainable
    )
    for name in sorted(frozen):
        if isinstance(variables[name], tf.Variable):
            raise ConfigError.of(
                f"scaffolds.{owners[name]}.trainable is false, and {name} is a tf.Variable",
                "only Keras's variables can be made untrainable",
                "delete the key, and leave the variables out where gradients are applied",
            )
    return frozen


def _tensor(name: str, variable: Any) -> TensorSpec:
    variable = tensorflow_variable(variable)
    return TensorSpec(name, tuple(variable.shape.as_list()), variable.dtype.base_dtype.name)


def _artifacts(scaffolds: Mapping[str, ScaffoldConfig]) -> Artifacts | None:
    """Returns the store of `$MLFLOW_TRACKING_URI`, if a checkpoint is in MLflow."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    paths = [str(scaffold.checkpoint) for scaffold in scaffolds.values()]
    paths += [str(path) for scaffold in scaffolds.values() for path in scaffold.average or ()]
    if uri is None or not any(map(is_mlflow_uri, paths)):
        return None
    return open_store(TrackingConfig(uri=uri), {})
