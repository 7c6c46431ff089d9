"""What can be done with a finished run: evaluate it on the test split, export its model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import keras
import tensorflow as tf

from runner.checkpoints.locate import require_checkpoint
from runner.config.schema import RunConfig
from runner.console import Screen
from runner.errors import Problem, RunDirectoryError, TrackingError
from runner.graph.averages import averaged_names
from runner.graph.build import build_data, build_graph
from runner.graph.names import model_variables
from runner.graph.precision import build_model, dtype_policy, full_precision
from runner.hooks import evaluate
from runner.runs.run_directory import PROVENANCE, RunDirectory, RunRecord, runs
from runner.system.signals import Interruption
from runner.system.status import Status
from runner.tracking import RunStore
from runner.training.export import SIGNATURE, exported_model, named


def evaluate_run(config: RunConfig, fingerprint: str, store: RunStore, screen: Screen) -> float:
    """Evaluates the best checkpoint of the newest finished run on the test split.

    The metrics are added to the run's record as `test/...`. Returns the objective's value there.

    Raises:
      RunDirectoryError: when there is no finished run of this configuration.
    """
    directory, _ = finished_run(config, fingerprint)
    prefix = require_checkpoint(str(directory.best))
    built = build_graph(config, "test", train=False)
    with built.graph.as_default(), tf.compat.v1.Session() as session:
        built.saver.restore(session, prefix)
        step = int(session.run(tf.compat.v1.train.get_global_step()))
        metrics = evaluate(session, built.split)
    shown = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    screen.line(f"{prefix}: test  {shown}")
    if store.recorded(directory.path):
        # A signal in between would leave the finished run RUNNING.
        with Interruption().handled() as interruption, interruption.deferred():
            name = f"{config.name} {directory.path.name}"
            ended = Status.FINISHED
            tracker = store.open(directory.path, config.name, name, {}, ended=ended)
            tracker.log_metrics({f"test/{name}": value for name, value in metrics.items()}, step)
            tracker.close(ended)
        interruption.check()
        screen.line(f"results: {tracker.location()}")
    return metrics[config.train.objective.removeprefix("validation/")]


def export_run(config: RunConfig, fingerprint: str, store: RunStore, screen: Screen) -> None:
    """Writes the best checkpoint of the newest finished run as a SavedModel.

    Its signature `serving_default` takes `features`, a batch of any size, and gives `outputs`; both
    have numbered names where they are structures of several tensors. The provenance that is beside
    the checkpoint is in its folder too.

    Where the run is recorded, the model is kept with it, and registered if `export.register` says
    so; an export that exists is registered as it is.

    Raises:
      RunDirectoryError: when there is no finished run of this configuration, or it has an export
        and nothing is to be registered.
      TrackingError: when the model cannot be registered.
    """
    directory, _ = finished_run(config, fingerprint)
    register = config.export.register
    prefix = require_checkpoint(str(directory.best))
    if not directory.export.exists():
        _export(config, directory, prefix)
        screen.line(f"{prefix}: exported to {directory.export}")
    elif register is None:
        raise RunDirectoryError(
            Problem(
                f"{directory.export} exists",
                "nothing is overwritten",
                "move it away; export.register=NAME registers it as it is",
            )
        )
    if register is None and not store.recorded(directory.path):
        return
    step = int(tf.train.load_variable(prefix, tf.compat.v1.GraphKeys.GLOBAL_STEP))
    model = exported_model(directory.export, step, build_data(config))
    try:
        uri = store.keep_model(directory.path, model, register, config.export.alias)
    except TrackingError as error:
        if register is not None:
            raise
        screen.line(f"the model is not kept with the run: {error}")
    else:
        if uri is not None:
            screen.line(f"model:   {uri}")


def _export(config: RunConfig, directory: RunDirectory, prefix: str) -> None:
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
        with tempfile.TemporaryDirectory(dir=directory.path, prefix="export-") as folder:
            unfinished = Path(folder) / "model"
            _save(session, unfinished, features, outputs, names)
            provenance = directory.best / PROVENANCE
            if provenance.is_file():
                shutil.copyfile(provenance, unfinished / PROVENANCE)
            unfinished.rename(directory.export)


def _save(
    session: tf.compat.v1.Session,
    folder: Path,
    features: object,
    outputs: object,
    names: Mapping[str, tf.Variable],
) -> None:
    """Saves as `simple_save` does, the variables under their names in checkpoints."""
    signature = tf.compat.v1.saved_model.predict_signature_def(
        named("features", features), named("outputs", outputs)
    )
    builder = tf.compat.v1.saved_model.Builder(str(folder))
    builder.add_meta_graph_and_variables(
        session,
        [tf.saved_model.SERVING],
        {SIGNATURE: signature},
        clear_devices=True,
        saver=tf.compat.v1.train.Saver(dict(names)) if names else None,
    )
    builder.save()


def finished_run(config: RunConfig, fingerprint: str) -> tuple[RunDirectory, RunRecord]:
    """Returns the newest finished run of this configuration in `run_dir`.

    Raises:
      RunDirectoryError: when there is none.
    """
    found = runs(Path(config.run_dir))
    for directory, record in found:
        if record.fingerprint == fingerprint and record.status == Status.FINISHED:
            return directory, record
    raise RunDirectoryError(
        Problem(
            f"{config.run_dir} holds no finished run of this configuration",
            "; ".join(f"{directory.path} is {record.status}" for directory, record in found)
            or "it holds no run at all",
            "train it first: the same command with mode=train",
        )
    )
