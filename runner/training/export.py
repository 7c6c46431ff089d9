"""Exports a checkpoint as a SavedModel, and describes its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from runner.checkpoints.locate import BEST_OF_RUN
from runner.config.choices import ExportFormat
from runner.errors import ConfigError, RunDirectoryError, TrackingError, ranked
from runner.graph.build import graph_maker
from runner.graph.serving import SIGNATURE
from runner.graph.trained_model import trained_model
from runner.runs.run_directory import RunDirectory
from runner.system.atomic_files import require_absent, unfinished
from runner.system.signals import Interruption
from runner.system.user_code import calling
from runner.tracking.stored_runs import ExportedModel, Field
from runner.training.evaluate_run import Weights, chosen_weights
from runner.training.experiment import Experiment
from runner.training.export_names import FILE, export_names

# Where SavedModels keep what is not TensorFlow's.
_STEP = Path("assets.extra") / "step"
_KERAS_SUFFIXES = {ExportFormat.keras: ".keras", ExportFormat.weights: ".weights.h5"}


def export_run(experiment: Experiment) -> None:
    """Writes a checkpoint, by default the best of the newest finished run, as a SavedModel.

    The signature `serving_default` of a `model` takes `features`, a batch of any size, and gives
    `outputs`. Where these are dictionaries, it takes and gives their keys, see
    `runner.graph.serving.named`. A `graph` or `model_fn` names its signatures itself.
    The provenance that is beside the checkpoint is in its folder too.

    With `export.format` it writes a file of Keras instead, which is not logged.
    With `export.names` it writes the values under the names of a scaffold's checkpoint instead.

    The model is logged where the run is recorded, and registered under `export.register`. An
    existing export is logged and registered as it is: an earlier command may have been killed.

    Raises:
      RunnerError: as `chosen_weights`; RunDirectoryError also when the export of another step
        exists already.
      TrackingError: when the model cannot be registered.
    """
    names, kind = experiment.config.export.names, experiment.config.export.format
    if names is not None:
        _require_scaffold(experiment, names)
    with chosen_weights(experiment, experiment.config.export.which) as weights:
        folder = _folder(experiment, weights)
        if names is not None:
            _export_names(experiment, weights, names, folder.with_name(f"{folder.name}-{names}"))
            return
        if kind is not ExportFormat.savedmodel:
            _export_keras(experiment, weights, kind)
            return
        if folder.exists():
            _require_same(folder, weights)
            experiment.screen.line(f"{weights}: is exported already, to {folder}")
        else:
            _export(weights, folder)
            experiment.screen.line(f"{weights}: exported to {folder}")
    if weights.directory is not None:
        _keep(experiment, weights.directory, folder, weights.step)


def _require_scaffold(experiment: Experiment, names: str) -> None:
    config = experiment.config
    if names not in config.scaffolds:
        state = f"export.names={names} names no scaffold"
        cause = "the values go back under the names of the checkpoint that they came from"
        raise ConfigError.of(state, cause, "", ranked(names, config.scaffolds))


def _export_names(experiment: Experiment, weights: Weights, names: str, folder: Path) -> None:
    require_absent(folder)
    plan = experiment.make_plan(experiment.build())
    plan.require_sound()
    lost = export_names(weights, plan, names, sources=experiment.sources, folder=folder)
    experiment.screen.line(f"{weights}: exported under the names of {names} to {folder / FILE}")
    if lost:
        experiment.screen.line(f"left out because it has no inverse: {lost}")


def _export_keras(experiment: Experiment, weights: Weights, kind: ExportFormat) -> None:
    """Writes a file of Keras, whose name has the step."""
    path, suffix = weights.output("export", experiment.container), _KERAS_SUFFIXES[kind]
    file = path.with_name(path.name + suffix)
    require_absent(file)
    model = trained_model(weights.config, weights.prefix)
    # Keras would not save one whose `train_step` calls its layers only: their variables exist.
    model.built = True
    with unfinished(file) as temporary, calling("model", f"it was saved as {file.name}"):
        (model.save if kind is ExportFormat.keras else model.save_weights)(temporary)
    experiment.screen.line(f"{weights}: exported to {file}")


def _folder(experiment: Experiment, weights: Weights) -> Path:
    if weights.directory is not None and experiment.config.export.which == BEST_OF_RUN:
        return weights.directory.export
    return weights.output("export", experiment.container)


def _require_same(folder: Path, weights: Weights) -> None:
    """Raises if an existing export is of another step, or of no run and so of unknown values."""
    step = int((folder / _STEP).read_text()) if (folder / _STEP).is_file() else None
    if weights.directory is None or step != weights.step:
        remedy = f"move it away to export step {weights.step}"
        cause = "nothing is overwritten, and it is of "
        cause += "an unknown step" if step is None else f"step {step}"
        raise RunDirectoryError.of(f"{folder} exists", cause, remedy)


def _keep(experiment: Experiment, directory: RunDirectory, folder: Path, step: int) -> None:
    """Keeps an export with the run, and registers it."""
    config, store, screen = experiment.config, experiment.store, experiment.screen
    register = config.export.register
    if register is None and not store.recorded(directory.path):
        return
    model = exported_model(folder, step, graph_maker(config).example())
    try:
        uri = store.keep_model(directory.path, model, register, alias=config.export.alias)
    except TrackingError as error:
        Interruption.check_swallowed()
        if register is not None:
            raise
        screen.line(f"the model is not kept with the run: {error}")
    else:
        if uri is not None:
            screen.line(f"model:   {uri}")


def _export(weights: Weights, target: Path) -> None:
    with unfinished(target) as folder:
        graph_maker(weights.config).save(weights.prefix, folder)
        weights.copy_provenance(folder)
        (folder / _STEP).parent.mkdir(exist_ok=True)
        (folder / _STEP).write_text(f"{weights.step}\n")
        Interruption.check_swallowed()


def exported_model(folder: Path, step: int, example: Mapping[str, Any]) -> ExportedModel:
    """Describes the SavedModel in `folder`.

    Args:
      folder: written by `mode=export`.
      step: the global step of its weights.
      example: input -> array of one example; may be empty.
    """
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signature = tf.compat.v1.saved_model.load(
            session, [tf.saved_model.SERVING], str(folder)
        ).signature_def[SIGNATURE]
    inputs, outputs = _fields(signature.inputs), _fields(signature.outputs)
    return ExportedModel(folder, step, inputs, outputs, example)


def _fields(tensors: Mapping[str, Any]) -> tuple[Field, ...]:
    return tuple(
        Field(
            name,
            np.dtype(tf.dtypes.as_dtype(info.dtype).as_numpy_dtype),
            tuple(-1 if size is None else size for size in tf.TensorShape(info.tensor_shape)),
        )
        for name, info in sorted(tensors.items())
    )
