"""An extended run: what its checkpoint must hold, and what does not come from it."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from runner.console import some_of
from runner.errors import RunDirectoryError
from runner.graph.built_graph import BuiltGraph
from runner.graph.imported_program import CALLBACKS
from runner.graph.session_variables import CheckpointSaver, PartialSaver, saved_as
from runner.graph.traces import METRICS
from runner.planning.optimizer_slots import LEARNING_RATE
from runner.runs.resumption import differences
from runner.runs.run_directory import RunDirectory
from runner.training.experiment import Experiment, OpenedRun

_RATE_KEY = "optimizer.learning_rate"
# How many lacking variables are named.
_NAMED = 3


def require_variables(experiment: Experiment, built: BuiltGraph, directory: RunDirectory) -> None:
    """Raises a RunDirectoryError if the checkpoint of a run to extend lacks variables."""
    prefix = tf.train.latest_checkpoint(str(directory.checkpoints))
    shapes = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    saved, added = saved_as(built.variables), _of_callbacks(built)
    lacking = [
        name
        for name, variable in saved.items()
        if name not in added
        and (
            name not in shapes
            or (isinstance(variable, tf.Variable) and list(variable.shape) != shapes[name])
        )
    ]
    if lacking:
        changes = differences(directory.load_record().settings, experiment.record.settings)
        raise RunDirectoryError.of(
            f"{directory.path} cannot be extended: {'; '.join(changes)}",
            f"its checkpoint has no such {some_of(lacking, _NAMED)}",
            "start another run, with a scaffold whose checkpoint is this run",
        )


def _of_callbacks(built: BuiltGraph) -> Mapping[str, tf.Variable]:
    """Returns name -> variable of what a graph has for callbacks alone."""
    if built.training is None or built.training.callback_state is None:
        return {}
    return {
        name: variable
        for name, variable in built.variables.items()
        if name == CALLBACKS or name.startswith(METRICS) or name.endswith(f"/{LEARNING_RATE}")
    }


def saver_of_extension(run: OpenedRun, newest: str) -> tf.compat.v1.train.Saver | None:
    """Returns the saver for a run whose newest checkpoint is from before its last extension.

    None where that checkpoint gives every variable its value. What callbacks added then have is
    initialised, and so is a learning rate that they could change, if the extension sets another.
    """
    extensions = run.directory.load_record().extensions
    added = _of_callbacks(run.built)
    if not extensions or not added or not newest.endswith(f"-{extensions[-1]['step']}"):
        return None
    known = tf.train.load_checkpoint(newest).get_variable_to_shape_map()
    changed = any(change.startswith(_RATE_KEY) for change in extensions[-1]["changes"])
    fresh = {
        name: variable
        for name, variable in added.items()
        if name not in known or (name.endswith(f"/{LEARNING_RATE}") and changed)
    }
    saver = run.built.saver
    if not fresh or not isinstance(saver, CheckpointSaver):
        return None
    with run.built.graph.as_default():
        others = tf.compat.v1.variables_initializer([*fresh.values()])
        saved = {name: item for name, item in saver.saved.items() if name not in fresh}
        return PartialSaver(saved, others, whole=saver, lacks=lambda prefix: prefix == newest)
