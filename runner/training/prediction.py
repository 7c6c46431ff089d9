"""Writes the predictions of a checkpoint of a run, or of the values that training starts from."""

from __future__ import annotations

from pathlib import Path

from runner.graph.build import graph_maker
from runner.graph.built_graph import Features
from runner.graph.splits import data_to_predict
from runner.inputs.feature_files import features_of_file
from runner.system.atomic_files import require_absent
from runner.system.signals import Interruption
from runner.training.evaluate_run import Weights, chosen_weights
from runner.training.experiment import Experiment
from runner.training.prediction_files import writer_of


def predict_run(experiment: Experiment) -> None:
    """Writes what a checkpoint, by default the best of the newest finished run, predicts.

    Batches are written as they are computed; the file appears under its name when it is complete.

    Raises:
      RunnerError: as `chosen_weights`; RunDirectoryError also when the file exists, ConfigError
        when there is nothing to predict from.
    """
    settings = experiment.config.predict
    with chosen_weights(experiment, settings.which) as weights:
        target = _target(experiment, weights)
        require_absent(target, f"predict.to=OTHER{target.suffix}, or move it away")
        maker = graph_maker(weights.config)
        batches = maker.predictions(_features(experiment), weights.prefix)
        with writer_of(target) as writer:
            for batch in batches:
                writer.write(batch)
            Interruption.check_swallowed()
    shapes = ", ".join(f"{name} {shape}" for name, shape in writer.shapes.items())
    experiment.screen.line(f"{weights}: {writer.count} predictions of {shapes} to {target}")


def _place(experiment: Experiment) -> str:
    """Returns where the features come from, for messages and the name of the file."""
    settings = experiment.config.predict
    if settings.data is not None:
        return "data"
    return settings.split.value if settings.file is None else Path(settings.file).stem


def _target(experiment: Experiment, weights: Weights) -> Path:
    if experiment.config.predict.to is not None:
        return Path(experiment.config.predict.to)
    path = weights.output("predictions", experiment.container)
    return path.with_name(f"{path.name}-{_place(experiment)}.npz")


def _features(experiment: Experiment) -> Features:
    settings = experiment.config.predict
    if settings.file is not None:
        path, batch_size = settings.file, settings.batch_size
        features_of_file(path, batch_size)  # Its problems come before the graph is built.
        return lambda: features_of_file(path, batch_size)
    if settings.data is not None:
        return lambda: data_to_predict(experiment.config)
    return settings.split.value
