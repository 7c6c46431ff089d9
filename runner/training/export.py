"""Exports a checkpoint as a SavedModel, and describes what that takes and gives."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from runner.checkpoints.locate import BEST_OF_RUN
from runner.config.schema import RunConfig
from runner.config.validation import is_own_graph
from runner.errors import ConfigError, Problem, RunDirectoryError, TrackingError
from runner.graph.build import build_data
from runner.graph.experiment import Data
from runner.graph.graph_spec import GraphSpec
from runner.graph.optimization import averaged_names
from runner.graph.own_graph import build_spec
from runner.graph.precision import build_model, dtype_policy, full_precision, new_graph
from runner.graph.replica import Replica
from runner.restoration.model_variables import model_variables
from runner.runs.run_directory import PROVENANCE, RunDirectory
from runner.session.session_manager import PLACED_SOFTLY
from runner.tracking.tracker import ExportedModel, Field
from runner.training.evaluation import Weights, chosen_weights
from runner.training.run import Experiment

SIGNATURE = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


# Where SavedModels keep what is not TensorFlow's.
_STEP = Path("assets.extra") / "step"


def export_run(experiment: Experiment) -> None:
    """Writes a checkpoint, by default the best of the newest finished run, as a SavedModel.

    Its signature `serving_default` takes `features`, a batch of any size, and gives `outputs`.
    Where these are dictionaries, it takes and gives their keys, see `named`. The provenance that is
    beside the checkpoint is in its folder too.

    Where the run is recorded, the model is kept with it, and registered if `export.register` says
    so; an export that exists is registered as it is.

    Raises:
      RunnerError: as `chosen_weights`; RunDirectoryError also when there is such an export already,
        and it is of another step or nothing is to be registered.
      TrackingError: when the model cannot be registered.
    """
    with chosen_weights(experiment, experiment.config.export.which) as weights:
        folder = _folder(experiment, weights)
        if folder.exists():
            _refuse_again(experiment.config, folder, weights)
        else:
            folder.parent.mkdir(parents=True, exist_ok=True)
            _export(weights, folder)
            experiment.screen.line(f"{weights}: exported to {folder}")
    if weights.directory is not None:
        _keep(experiment, weights.directory, folder, weights.step)


def _folder(experiment: Experiment, weights: Weights) -> Path:
    if weights.directory is None:
        return experiment.container / "export-scaffolds"
    if experiment.config.export.which == BEST_OF_RUN:
        return weights.directory.export
    return weights.directory.path / f"export-{weights.step}"


def _refuse_again(config: RunConfig, folder: Path, weights: Weights) -> None:
    """Raises where the export that exists is not the one to register."""
    # Former versions did not note the step.
    step = int((folder / _STEP).read_text()) if (folder / _STEP).is_file() else weights.step
    if config.export.register is None or step != weights.step:
        raise RunDirectoryError(
            Problem(
                f"{folder} exists",
                "nothing is overwritten"
                + (f", and it is of step {step}" if step != weights.step else ""),
                f"move it away to export step {weights.step}"
                if step != weights.step
                else "move it away; export.register=NAME registers it as it is",
            )
        )


def _keep(experiment: Experiment, directory: RunDirectory, folder: Path, step: int) -> None:
    """Keeps an export with the run, and registers it."""
    config, store, screen = experiment.config, experiment.store, experiment.screen
    register = config.export.register
    if register is None and not store.recorded(directory.path):
        return
    if is_own_graph(config):
        with new_graph(config, Replica()):
            example = build_spec(config, "export").example
        model = exported_model(folder, step, {} if example is None else example())
    else:
        model = exported_model(folder, step, build_data(config))
    try:
        uri = store.keep_model(directory.path, model, register, alias=config.export.alias)
    except TrackingError as error:
        if register is not None:
            raise
        screen.line(f"the model is not kept with the run: {error}")
    else:
        if uri is not None:
            screen.line(f"model:   {uri}")


def _export(weights: Weights, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="export-") as folder:
        unfinished = Path(folder) / "model"
        write = _write_own_graph if is_own_graph(weights.config) else _write_model
        write(weights.config, unfinished, weights.prefix)
        provenance = Path(weights.prefix).parent / PROVENANCE
        if provenance.is_file():
            shutil.copyfile(provenance, unfinished / PROVENANCE)
        (unfinished / _STEP).parent.mkdir(exist_ok=True)
        (unfinished / _STEP).write_text(f"{weights.step}\n")
        unfinished.rename(target)


def _write_own_graph(config: RunConfig, folder: Path, prefix: str) -> None:
    """Exports the signatures of a graph of one's own."""
    with (
        new_graph(config, Replica()) as graph,
        tf.compat.v1.Session(graph=graph, config=PLACED_SOFTLY) as session,
    ):
        spec = build_spec(config, "export")
        if SIGNATURE not in spec.signatures:
            raise ConfigError(
                Problem(
                    f"the graph for mode export has no signature {SIGNATURE}",
                    "that is what a served model answers with",
                    "return GraphSpec(signatures={name: SignatureDef})",
                    tuple(spec.signatures),
                )
            )
        save_model(session, folder, prefix, spec)


def save_model(
    session: tf.compat.v1.Session,
    folder: Path,
    checkpoint: str,
    spec: GraphSpec,
    *,
    as_text: bool = False,
) -> None:
    """Writes a SavedModel of a graph's signatures, with the values of a checkpoint.

    Raises:
      ConfigError: when the checkpoint lacks a variable of the graph.
    """
    saver = spec.scaffold.saver or tf.compat.v1.train.Saver()
    try:
        saver.restore(session, checkpoint)
    except (tf.errors.NotFoundError, ValueError) as error:
        raise ConfigError(
            Problem(
                f"{checkpoint} lacks a variable of the graph for mode export",
                str(error).splitlines()[0],
                "make the same variables in every mode",
            )
        ) from error
    local = tf.compat.v1.train.Scaffold.default_local_init_op()
    builder = tf.compat.v1.saved_model.Builder(str(folder))
    builder.add_meta_graph_and_variables(
        session,
        [tf.saved_model.SERVING],
        dict(spec.signatures),
        assets_collection=tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.ASSET_FILEPATHS),
        main_op=spec.scaffold.local_init_op or local,
        clear_devices=True,
        saver=saver,
        strip_default_attrs=True,
    )
    builder.save(as_text)


def _write_model(config: RunConfig, folder: Path, prefix: str) -> None:
    keras.utils.clear_session()
    with (
        tf.Graph().as_default() as graph,
        dtype_policy(config),
        tf.compat.v1.Session(graph=graph) as session,
    ):
        spec = build_data(config).test().element_spec[0]
        features = tf.nest.map_structure(
            lambda each: tf.compat.v1.placeholder(each.dtype, [None, *each.shape[1:]]), spec
        )
        model = build_model(config)
        outputs = tf.function(
            lambda batch: full_precision(model(batch, training=False)), autograph=False
        )(features)
        names = model_variables(model)
        restored = averaged_names(names, prefix) if config.train.evaluate_ema else names
        tf.compat.v1.train.Saver(restored or None).restore(session, prefix)
        signature = tf.compat.v1.saved_model.predict_signature_def(
            named("features", features), named("outputs", outputs)
        )
        # As `simple_save` does, but with the variables under their names in checkpoints.
        builder = tf.compat.v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(
            session,
            [tf.saved_model.SERVING],
            {SIGNATURE: signature},
            clear_devices=True,
            saver=tf.compat.v1.train.Saver(dict(names)) if names else None,
        )
        builder.save()


def named(prefix: str, structure: Any) -> dict[str, Any]:
    """Returns a structure's leaves by name: the keys of dictionaries, nested ones joined by `_`.

    What is in no dictionary is called `prefix`, or `prefix_0` and so on for several.
    """
    keyed = structure if isinstance(structure, Mapping) else {prefix: structure}
    found = {"_".join(map(str, path)): leaf for path, leaf in keras.tree.flatten_with_path(keyed)}
    leaves = tf.nest.flatten(structure)
    several = keyed is structure or len(leaves) > 1
    return found if several and len(found) == len(leaves) else _numbered(prefix, leaves)


def _numbered(prefix: str, leaves: Sequence[Any]) -> dict[str, Any]:
    """Names leaves whose keys are ambiguous, such as `a_b` beside `b` in `a`."""
    if len(leaves) == 1:
        return {prefix: leaves[0]}
    return {f"{prefix}_{index}": leaf for index, leaf in enumerate(leaves)}


def exported_model(folder: Path, step: int, example: Data | Mapping[str, Any]) -> ExportedModel:
    """Describes the SavedModel in `folder`.

    Args:
      folder: written by `mode=export`.
      step: the global step of its weights.
      example: input -> array of one example; or the data whose test split begins with it.
    """
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signature = tf.compat.v1.saved_model.load(
            session, [tf.saved_model.SERVING], str(folder)
        ).signature_def[SIGNATURE]
    return ExportedModel(
        folder,
        step,
        _fields(signature.inputs),
        _fields(signature.outputs),
        example if isinstance(example, Mapping) else _example(example, signature),
    )


def _example(data: Data, signature: Any) -> dict[str, Any]:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batches = tf.compat.v1.data.make_initializable_iterator(data.test())
        features, _ = batches.get_next()
        session.run([batches.initializer, tf.compat.v1.tables_initializer()])
        known = named("features", features)
        if known.keys() != signature.inputs.keys():  # An export from before keys were kept.
            known = _numbered("features", tf.nest.flatten(features))
        example = session.run(known)
    return {name: value[:1] for name, value in example.items()}


def _fields(tensors: Mapping[str, Any]) -> tuple[Field, ...]:
    return tuple(
        Field(
            name,
            np.dtype(tf.dtypes.as_dtype(info.dtype).as_numpy_dtype),
            tuple(-1 if size is None else size for size in tf.TensorShape(info.tensor_shape)),
        )
        for name, info in sorted(tensors.items())
    )
