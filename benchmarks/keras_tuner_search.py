"""Eight short trials by KerasTuner with MLflow's autologging, as a plain script writes them.

They train what `tests/samples/conf/experiment/tiny.yaml` does: 20 steps, evaluated at every tenth.
"""

from __future__ import annotations

import sys

import keras
import keras_tuner
import mlflow

from tests.samples.experiment import Blobs, Net


def build(hyperparameters: keras_tuner.HyperParameters) -> keras.Model:
    """Builds and compiles the model of a trial."""
    model = Net()
    model.compile(
        keras.optimizers.Adam(hyperparameters.Float("rate", 1e-4, 1e-1, sampling="log")),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy("accuracy")],
    )
    return model


def main(trials: int) -> None:
    """Searches in the current directory."""
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    mlflow.set_experiment("tiny")
    # The runner logs no model either, unless it is told to.
    mlflow.tensorflow.autolog(log_models=False, log_datasets=False)
    tuner = keras_tuner.RandomSearch(
        build, "val_loss", max_trials=trials, seed=0, directory="tuned", project_name="tiny"
    )
    data = Blobs()
    tuner.search(
        data.train(), epochs=2, steps_per_epoch=10, validation_data=data.validation(), verbose=0
    )
    if len(mlflow.search_runs()) < trials:
        raise RuntimeError("not every trial has a run in MLflow")


if __name__ == "__main__":
    main(int(sys.argv[1]))
