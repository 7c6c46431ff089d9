"""The first step of `lstm_cnn` in a bare script, and a hook that tells of the runner's first."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow.compat.v1 as tf

from experiments.digits import DigitSequences
from experiments.models import SequenceClassifier


class FirstStep(tf.train.SessionRunHook):
    """Writes to a file when the first step was done."""

    def __init__(self, file: str) -> None:
        """Stores the file."""
        self._file = Path(file)

    def after_run(self, run_context: Any, run_values: tf.train.SessionRunValues) -> None:
        """Writes the time, on the clock that all processes of the machine share."""
        if not self._file.exists():
            self._file.write_text(repr(time.monotonic()))


def main(file: str) -> None:
    """Builds the graph that the runner builds for the experiment, and takes a step."""
    keras.utils.set_random_seed(0)
    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        data = DigitSequences(batch_size=64, seed=0, length=6, every_step=False)
        model = SequenceClassifier(every_step=False)

        def forward(features: tf.Tensor, labels: tf.Tensor, training: bool) -> tuple[Any, Any]:
            logits = model(features, training=training)
            loss = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            return loss, keras.metrics.sparse_categorical_accuracy(labels, logits)

        function = tf.function(forward, autograph=False)
        batches = tf.data.make_initializable_iterator(data.train().prefetch(tf.data.AUTOTUNE))
        loss, accuracy = (tf.reduce_mean(each) for each in function(*batches.get_next(), True))
        passes = tf.data.make_initializable_iterator(data.validation())
        [tf.reduce_sum(each) for each in function(*passes.get_next(), False)]
        train_op = tf.train.AdamOptimizer(1e-3).minimize(loss, step)
        tf.train.Saver()
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), batches.initializer])
            session.run([train_op, loss, accuracy])
            Path(file).write_text(repr(time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1])
