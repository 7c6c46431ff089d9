"""`runner.fit`: a Keras model, trained in a run by the arguments of `keras.Model.fit`."""

from __future__ import annotations

import inspect
import io
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

from rich.console import Console

from runner.api.door import door
from runner.api.fit_arguments import checked
from runner.api.result import Result
from runner.api.run import Overrides, as_typed, python_context
from runner.api.start import start
from runner.config.composition import (
    command_scope,
    compose_command,
    experiment_in_store,
    without_hydra,
)
from runner.config.fit_experiment import FitExperiment
from runner.config.instantiation import python_objects
from runner.config.schedule import NEVER
from runner.console import Screen
from runner.errors import ConfigError, described_type
from runner.system.atomic_files import write_text
from runner.system.imports import import_tensorflow
from runner.system.user_code import calling
from runner.training.context import TrialWatch

# Arguments of `fit` that are arguments of `FitData`.
_OF_DATA = (
    *("y", "sample_weight", "batch_size", "validation_data", "validation_split"),
    *("validation_batch_size", "validation_steps", "shuffle"),
)


@door
def fit(
    model: Any,
    x: Any,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Any = None,
    validation_split: float | None = None,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    *,
    name: str = "",
    scaffolds: Mapping[str, Any] | None = None,
    seed: int = 0,
    overrides: Overrides = (),
) -> Result:
    """Trains a Keras model in a run: planned, warm-started, resumed exactly, recorded.

    It takes the arguments of `keras.Model.fit`, in its order. The same call resumes a run that was
    interrupted. The run directory gets `experiment.yaml`, the experiment that the command line
    would take; its head names what another process cannot import.

    Args:
      model: a compiled model, or a function that returns one. The weights of a model are its
        initial values, and at the end it has those that `fit` would leave; a run that resumes
        reads none of them. A function is called under the run's seed.
      x: features, or batches; see `runner.inputs.FitData`, of which also `y`, `batch_size`,
        `validation_data`, `validation_split`, `validation_batch_size`, `validation_steps`,
        `sample_weight` and `shuffle` are.
      y: labels.
      batch_size: examples per batch of arrays, by default 32.
      epochs: the last epoch; how many there are, without an `initial_epoch`.
      verbose: 0 prints nothing; any other value prints as always.
      callbacks: Keras callbacks.
      validation_split: the part of the arrays that is for validation, without `validation_data`.
      validation_data: `(x, y)`, or batches, evaluated after each epoch.
      shuffle: whether every epoch has another order.
      class_weight: class -> weight of its examples in training.
      sample_weight: weights of the examples.
      initial_epoch: the number of epochs before the first one.
      steps_per_epoch: steps of an epoch; by default the number of batches, which are counted where
        they do not tell it.
      validation_steps: how many batches of the validation data to evaluate, by default all.
      validation_batch_size: by default `batch_size`.
      validation_freq: evaluates after every so many epochs, or after the epochs in a list.
      name: of the experiment; by default the name of the model or function.
      scaffolds: name -> the keys of `scaffolds.NAME` in a configuration.
      seed: of the weights that a function makes, the order and whatever else is random. What a
        model that is handed over draws continues the random state of a process that called
        `keras.utils.set_random_seed`.
      overrides: further settings, as for `runner.run`, such as `{"tracking.uri": None}`.

    Returns:
      The run.

    Raises:
      RunnerError: as `runner.run`.
    """
    arguments = locals()
    overrides, verbose = arguments.pop("overrides"), arguments.pop("verbose")
    silent = {"screen": Screen(Console(file=io.StringIO()))} if verbose == 0 else {}
    with experiment_of(**arguments) as (stored, text, objects), _left_usable(model):
        typed = as_typed(overrides)
        command = without_hydra(compose_command([f"+experiment={stored}", *typed]))
        context = python_context(typed, watch=_FileOfExperiment(text), **silent)
        result = replace(start(command, context), objects=objects)
    _leave_history(model, result)
    return result


@contextmanager
def experiment_of(
    model: Any, x: Any, *, needs_objective: bool = False, **arguments: Any
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Provides the experiment of the arguments of `fit`, and the scope to compose it in.

    That is its name for `+experiment=`, the file that it would be, and what each `${python:NAME}`
    in it stands for. Where an objective is needed and there are no validation data, training data
    whose number is known are evaluated at the end.

    Raises:
      ConfigError: when they are no experiment.
      UserCodeError: when the data cannot be read.
    """
    import_tensorflow()
    from runner.inputs.data_digest import digest
    from runner.inputs.fit_data import given_data

    unknown = arguments.keys() - inspect.signature(fit).parameters.keys()
    if unknown:
        names = ", ".join(sorted(unknown))
        raise ConfigError.of(
            f"fit takes no {names}", choices=tuple(inspect.signature(fit).parameters)
        )
    arguments = checked(arguments)
    experiment = FitExperiment(digest)
    model_node, default_name = _model_node(experiment, model)
    data = {"x": x, **{key: arguments[key] for key in _OF_DATA if arguments.get(key) is not None}}
    steps_per_epoch, class_weight = arguments.get("steps_per_epoch"), arguments.get("class_weight")
    name, seed = arguments.get("name") or default_name, arguments.get("seed", 0)
    with calling("data"):  # Counting and telling them apart reads batches.
        data, length = given_data(data, steps_per_epoch, class_weight=class_weight is not None)
        node = experiment.node(model_node, data, name=name, seed=seed)
    validation_freq = arguments.get("validation_freq", 1)
    if {"validation_data", "validation_split"}.isdisjoint(data):
        evaluate_every = "end" if needs_objective and length is not None else NEVER
    elif isinstance(validation_freq, Integral):
        evaluate_every = f"{validation_freq} epochs"
    else:
        evaluate_every = ", ".join(f"at epoch {epoch}" for epoch in validation_freq) or NEVER
    node["train"] = {
        "epochs": arguments.get("epochs", 1),
        "log_every": "50 steps, 1 epoch",
        "evaluate_every": evaluate_every,
        "checkpoint_every": "1 epoch",
    }
    if arguments.get("initial_epoch"):
        node["train"]["initial_epoch"] = arguments["initial_epoch"]
    if steps_per_epoch is not None:
        node["train"]["steps_per_epoch"] = steps_per_epoch
    if arguments.get("callbacks"):
        node["callbacks"] = experiment.callbacks(arguments["callbacks"])
    if class_weight:
        node["class_weight"] = class_weight
    if arguments.get("scaffolds") is not None:
        node["scaffolds"] = dict(arguments["scaffolds"])
    with command_scope(), python_objects(experiment.objects), experiment_in_store(node) as stored:
        yield stored, experiment.text(node), experiment.objects


def _model_node(experiment: FitExperiment, model: Any) -> tuple[dict[str, Any], str]:
    """Returns the node of a model or function, and the name of the experiment."""
    import keras

    from runner.graph.plain_config import model_digest, model_name

    if isinstance(model, keras.Model):
        if not model.compiled:
            raise ConfigError.of(
                f"the model {model.name} is not compiled",
                "a run trains it with the optimizer and loss of compile, as fit does",
                "call its compile first",
            )
        name = model_name(model)
        return experiment.handed_over("model", model, f"{name}@{model_digest(model)}"), name
    if not callable(model) or isinstance(model, keras.Layer | types.ModuleType):
        cause = "a run trains a compiled keras.Model, or one that a function returns"
        raise ConfigError.of(f"model is {described_type(model)}", cause, "give one of these")
    node = experiment.built_by(model)
    return node, node["_target_"].rpartition(".")[2]


def _left_usable(model: Any) -> AbstractContextManager[None]:
    """Leaves a model that is handed over usable, also if its run does not end."""
    import keras

    from runner.graph.model_values import left_usable

    return left_usable(model) if isinstance(model, keras.Model) else nullcontext()


def _leave_history(model: Any, result: Result) -> None:
    """Sets `history` of a model that was handed over and is trained, as `fit` does."""
    import keras

    if isinstance(model, keras.Model) and result.directory is not None:
        history = keras.callbacks.History()
        history.set_model(model)
        history.history, history.epoch = result.history, result.epoch
        model.history = history


class _FileOfExperiment(TrialWatch):
    """Writes the experiment into its run."""

    def __init__(self, text: str) -> None:
        self._text = text

    def started(self, run_dir: Path) -> None:
        """Writes the file."""
        write_text(run_dir / "experiment.yaml", self._text, lasting=False)
