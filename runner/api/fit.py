"""`runner.fit`: a function that returns a compiled model, trained in a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.api.door import door
from runner.api.result import Result
from runner.api.run import Overrides, as_typed, run_config
from runner.config.composition import (
    command_scope,
    compose_command,
    experiment_in_store,
    without_hydra,
)
from runner.config.fit_experiment import FitExperiment
from runner.config.instantiation import python_objects
from runner.errors import ConfigError
from runner.system.atomic_files import write_text
from runner.system.imports import import_tensorflow
from runner.training.watch import TrialWatch

# Arguments of `fit` that are arguments of `FitData`.
_OF_DATA = (
    *("x", "y", "sample_weight", "batch_size", "validation_data", "validation_split"),
    *("validation_batch_size", "shuffle"),
)


@door
def fit(
    build_model: Callable[..., Any],
    x: Any,
    y: Any = None,
    *,
    name: str = "",
    scaffolds: Mapping[str, Any] | None = None,
    epochs: int = 1,
    batch_size: int | None = None,
    validation_data: Any = None,
    validation_split: float | None = None,
    validation_batch_size: int | None = None,
    sample_weight: Any = None,
    class_weight: Mapping[int, float] | None = None,
    shuffle: bool = True,
    steps_per_epoch: int | None = None,
    callbacks: Sequence[Any] = (),
    seed: int = 0,
    overrides: Overrides = (),
) -> Result:
    """Trains a Keras model in a run: planned, warm-started, resumed exactly, recorded.

    The same call resumes a run that was interrupted. The run directory gets `experiment.yaml`, the
    experiment that the command line would take; its head names what another process cannot import.

    Args:
      build_model: a function that returns the compiled model; of a module or script, or any other.
      x: features, or batches; see `runner.inputs.FitData`, of which also `y`, `batch_size`,
        `validation_data`, `validation_split`, `validation_batch_size`, `sample_weight` and
        `shuffle` are.
      y: labels.
      name: of the experiment; by default that of the function.
      scaffolds: name -> the keys of `scaffolds.NAME` in a configuration.
      epochs: how many passes over the data to make; the validation data are evaluated after each,
        and without any the training data at the end.
      batch_size: examples per batch of arrays, by default 32.
      validation_data: `(x, y)`, or batches.
      validation_split: the part of the arrays that is for validation.
      validation_batch_size: by default `batch_size`.
      sample_weight: weights of the examples.
      class_weight: class -> weight of its examples in training.
      shuffle: whether every epoch has another order.
      steps_per_epoch: steps of an epoch; by default the number of batches.
      callbacks: Keras callbacks.
      seed: of the weights, the order and whatever else is random.
      overrides: further settings, as for `runner.run`, such as `{"tracking.uri": None}`.

    Returns:
      The run.

    Raises:
      RunnerError: as `runner.run`.
    """
    arguments = locals()
    overrides = arguments.pop("overrides")
    with experiment_of(**arguments) as (stored, text, objects):
        typed = as_typed(overrides)
        command = without_hydra(compose_command([f"+experiment={stored}", *typed]))
        result, _ = run_config(command, typed, _FileOfExperiment(text))
        return replace(result, objects=objects)


@contextmanager
def experiment_of(
    build_model: Callable[..., Any],
    *,
    epochs: int = 1,
    steps_per_epoch: int | None = None,
    callbacks: Sequence[Any] = (),
    name: str = "",
    seed: int = 0,
    **arguments: Any,
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Provides the experiment of the arguments of `fit`, and the scope to compose it in.

    That is its name for `+experiment=`, the file that it would be, and what each `${python:NAME}`
    in it stands for.

    Raises:
      ConfigError: when they are no experiment.
    """
    import_tensorflow()
    set_arguments = {key: value for key, value in arguments.items() if value is not None}
    data = {key: set_arguments.pop(key) for key in _OF_DATA if key in set_arguments}
    experiment = FitExperiment()
    node = experiment.node(build_model, data, name=name, seed=seed)
    steps = steps_per_epoch or _steps(data)
    has_validation = not {"validation_data", "validation_split"}.isdisjoint(data)
    node["train"] = {
        "epochs": epochs,
        "steps_per_epoch": steps,
        "log_every": min(50, steps),
        "evaluate_every": steps if has_validation else "end",
        "checkpoint_every": steps,
    }
    if callbacks:
        node["callbacks"] = experiment.callbacks(callbacks)
    node |= {key: dict(part) for key, part in set_arguments.items()}
    with command_scope(), python_objects(experiment.objects), experiment_in_store(node) as stored:
        yield stored, experiment.text(node), experiment.objects


def _steps(data: Mapping[str, Any]) -> int:
    from runner.inputs.fit_data import FitData

    steps = FitData(**data).steps()
    if steps is None:
        cause = "the data do not tell how many batches they have"
        raise ConfigError.of("the length of an epoch is not known", cause, "steps_per_epoch=")
    return steps


class _FileOfExperiment(TrialWatch):
    """Writes the experiment into its run."""

    def __init__(self, text: str) -> None:
        self._text = text

    def started(self, run_dir: Path) -> None:
        """Writes the file."""
        write_text(run_dir / "experiment.yaml", self._text, lasting=False)
