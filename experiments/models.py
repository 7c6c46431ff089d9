"""Keras models whose parts `cnn`, `lstm` and `head` can be warm-started separately."""

from __future__ import annotations

import keras
import tensorflow as tf


def build_cnn(filters: int, embedding: int, dropout: float) -> keras.Sequential:
    """Builds the part that turns images into embeddings; its variables are named `cnn/...`.

    Args:
      filters: channels of the first convolution; the second has twice as many.
      embedding: numbers in an embedding.
      dropout: share of the convolutions' outputs that training sets to zero.

    Returns:
      A model from float32 [batch, height, width, 1] to float32 [batch, embedding].
    """
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Conv2D(filters, 3, padding="same", use_bias=False, name="conv1"),
            # Keras's default of 0.99 would average over more steps than a short training has.
            layers.BatchNormalization(momentum=0.9, name="norm1"),
            layers.ReLU(name="relu1"),
            layers.Conv2D(2 * filters, 3, padding="same", use_bias=False, name="conv2"),
            layers.BatchNormalization(momentum=0.9, name="norm2"),
            layers.ReLU(name="relu2"),
            layers.MaxPooling2D(name="pool"),
            layers.Flatten(name="flatten"),
            layers.Dropout(dropout, name="dropout"),
            layers.Dense(embedding, activation="relu", name="embedding"),
        ],
        name="cnn",
    )


class DigitClassifier(keras.Model):
    """Classifies single images: `cnn`, then a dense `head`.

    Calling it maps float32 [batch, height, width, 1] to logits, float32 [batch, classes].

    Args:
      classes: how many classes there are.
      filters: channels of the CNN's first convolution.
      embedding: size of the CNN's embedding.
      dropout: dropout within the CNN.
    """

    def __init__(
        self, classes: int = 10, filters: int = 16, embedding: int = 32, dropout: float = 0.2
    ) -> None:
        super().__init__(name="digit_classifier")
        self.cnn = build_cnn(filters, embedding, dropout)
        self.head = keras.layers.Dense(classes, name="head")

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the logits."""
        return self.head(self.cnn(images, training=training))


class SequenceClassifier(keras.Model):
    """Classifies sequences of images: `cnn` embeds each, `lstm` reads the embeddings, then `head`.

    Calling it maps float32 [batch, time, height, width, 1] to logits: float32
    [batch, time, classes] with `every_step`, else float32 [batch, classes].

    Args:
      classes: how many classes there are.
      filters: channels of the CNN's first convolution.
      embedding: size of the CNN's embedding.
      dropout: dropout within the CNN.
      units: size of the LSTM's state.
      every_step: whether to classify after every image or only after the last.
      train_cnn: False calls the CNN in inference mode even in training: batch norm uses its moving
        statistics without updating them, and dropout is off. A frozen CNN needs this besides
        `scaffolds.<name>.trainable: false`, which keeps its weights; otherwise its statistics would
        drift and its embeddings would be noisy.
    """

    def __init__(
        self,
        classes: int = 10,
        filters: int = 16,
        embedding: int = 32,
        dropout: float = 0.2,
        units: int = 128,
        every_step: bool = True,
        train_cnn: bool = True,
    ) -> None:
        super().__init__(name="sequence_classifier")
        self.train_cnn = train_cnn
        self.cnn = build_cnn(filters, embedding, dropout)
        self.lstm = keras.layers.LSTM(units, return_sequences=every_step, name="lstm")
        self.head = keras.layers.Dense(classes, name="head")

    def call(self, sequences: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the logits."""
        time, *image = sequences.shape[1:]
        images = keras.ops.reshape(sequences, (-1, *image))
        embeddings = self.cnn(images, training=training and self.train_cnn)
        by_time = keras.ops.reshape(embeddings, (-1, time, embeddings.shape[-1]))
        return self.head(self.lstm(by_time))
