"""The Keras model of a configuration without a session: for proofs, predictions and exports."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.graph.averages import averaged_names
from runner.graph.keras_steps import KerasSteps
from runner.graph.program import Program, as_in_fit, load_program
from runner.graph.splits import batches_of
from runner.internals.keras import finalize
from runner.internals.tensorflow import give


def initial_model(config: RunConfig) -> Any:
    """Returns the Keras model of a configuration, built, with its initial values.

    Raises:
      ConfigError, UserCodeError: when it cannot be built.
    """
    with as_in_fit(config):
        return _built(config, compiled=False).model


def trained_model(config: RunConfig, prefix: str) -> Any:
    """Returns the Keras model with a checkpoint's weights, or with their averages if it has them.

    It is compiled with the optimizers, loss and metrics of the run, and the optimizers have the
    state in the checkpoint.

    Args:
      config: the configuration of the run that saved the checkpoint.
      prefix: the path of the checkpoint, without the suffix of a file.

    Raises:
      ConfigError: when the run has no Keras model, or the model has other variables.
    """
    with as_in_fit(config):
        program = _built(config, compiled=True)
        KerasSteps(program, None).build_optimizers(_spec(program))
    reader = tf.train.load_checkpoint(prefix)
    saved = reader.get_variable_to_shape_map()
    variables = program.weights()
    state = program.optimizer_variables()
    if config.train.evaluates_averages:
        variables = averaged_names(variables, prefix)
    lacking = sorted(variables.keys() - saved.keys())
    if lacking:
        cause = f"it lacks {', '.join(lacking[:3])}"
        raise ConfigError.of(f"{prefix} is not a checkpoint of this model", cause)
    present = [(name, variable) for name, variable in state.items() if name in saved]
    for name, variable in (*variables.items(), *present):
        give(variable, reader.get_tensor(name))
    finalize(program.model)
    return program.model


def _built(config: RunConfig, *, compiled: bool) -> Program:
    program = load_program(config, compiled=compiled)
    program.build(_spec(program))
    return program


def _spec(program: Program) -> Any:
    return batches_of("train", program.data, labelled=False).element_spec
