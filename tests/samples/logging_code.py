"""Data, a callback and a hook that record to the run with `runner.current_run()`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

import runner
from tests.samples.keras_callbacks import Few


class Talkative(Few):
    """Records when it is made, before there is a run directory."""

    def __init__(self) -> None:
        runner.current_run().log_text("classes: 3", "data/about.txt")
        runner.current_run().log_metric("data/classes", 3)


class LogImages(keras.callbacks.Callback):
    """Records an image, a figure and a histogram of the weights after each epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        run = runner.current_run()
        run.log_image(np.full((4, 6, 3), epoch / 10), "samples/last.png")
        figure = Figure()
        figure.subplots().plot([0, epoch])
        run.log_figure(figure, f"curves/{epoch}.png")
        run.log_histogram(self.model.get_weights()[0], "weights/first")


class LogSteps(tf.compat.v1.train.SessionRunHook):
    """Records a metric after each step."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        runner.current_run().log_metrics({"own/one": 1})
