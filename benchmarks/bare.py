"""The graph that the runner builds for a classifier, built by TensorFlow and Keras alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import tensorflow.compat.v1 as tf

if TYPE_CHECKING:  # A bare script imports nothing of the runner.
    from runner.graph.contracts import Data


@dataclass(frozen=True)
class BareGraph:
    """A training step and an evaluation in the default graph.

    Attributes:
      initializers: of the variables and the training input.
      step: the train op, the loss and the accuracy.
      start_evaluation: starts the validation input.
      evaluation: the sums of loss and accuracy over a batch of it.
      saver: saves all variables.
    """

    initializers: list[tf.Operation]
    step: list[Any]
    start_evaluation: tf.Operation
    evaluation: list[tf.Tensor]
    saver: tf.train.Saver


def bare_graph(data: Data, model: Any) -> BareGraph:
    """Adds the graph to the default one, with Adam and the loss of the shipped classifiers."""
    global_step = tf.train.get_or_create_global_step()

    def forward(features: tf.Tensor, labels: tf.Tensor, training: bool) -> tuple[Any, Any]:
        logits = model(features, training=training)
        loss = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        return loss, keras.metrics.sparse_categorical_accuracy(labels, logits)

    function = tf.function(forward, autograph=False)
    batches = tf.data.make_initializable_iterator(data.train().prefetch(tf.data.AUTOTUNE))
    loss, accuracy = (tf.reduce_mean(metric) for metric in function(*batches.get_next(), True))
    passes = tf.data.make_initializable_iterator(data.validation())
    sums = [tf.reduce_sum(metric) for metric in function(*passes.get_next(), False)]
    train_op = tf.train.AdamOptimizer(1e-3).minimize(loss, global_step)
    saver = tf.train.Saver()
    initializers = [tf.global_variables_initializer(), batches.initializer]
    return BareGraph(initializers, [train_op, loss, accuracy], passes.initializer, sums, saver)
