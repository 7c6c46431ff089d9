"""Programs that train a part, or learn from another model: distillation, contrast, masking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.keras_io.parts import Logged, dense, points, tokens, update

CROSSENTROPY = "sparse_categorical_crossentropy"


def labelled(seed: int) -> Any:
    features = points(seed)
    return features, (features.sum(axis=1) > 0).astype("int32")


class Distiller(keras.Model):
    """A student and a frozen teacher; the compiled loss and metrics, through Keras's helpers."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = dense(4, 16, 2, name="teacher"), dense(4, 4, 2, name="student")
        self.teacher.trainable = False

    def call(self, x: Any, training: bool = False) -> Any:
        return self.student(x, training=training)

    def soft_loss(self, x: Any, logits: Any) -> Any:
        target = ops.softmax(self.teacher(x, training=False) / 3.0)
        return ops.mean(keras.losses.kl_divergence(target, ops.softmax(logits / 3.0))) * 9.0


class DistillerByStep(Distiller):
    def train_step(self, data: Any) -> Mapping[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            logits = self(x, training=True)
            loss = 0.3 * self.compute_loss(x, y, logits) + 0.7 * self.soft_loss(x, logits)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {**self.compute_metrics(x, y, logits), "distillation": loss}


class DistillerByLoss(Distiller):
    def compute_loss(self, x: Any, y: Any, y_pred: Any, *others: Any, **named: Any) -> Any:
        soft = self.soft_loss(x, y_pred)
        return 0.3 * super().compute_loss(x, y, y_pred, *others, **named) + 0.7 * soft


def _compiled(model: keras.Model) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    return model


def distillation_by_train_step() -> keras.Model:
    return _compiled(DistillerByStep())


def distillation_by_compute_loss() -> keras.Model:
    return _compiled(DistillerByLoss())


class Anchors(keras.utils.PyDataset):
    """A pair of examples of each class, drawn by the number of the batch."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.centers = seed, points(7)[:6]

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        noise = np.random.default_rng((self.seed, index)).normal(size=(2, 6, 4)) * 0.3
        return (self.centers + noise).astype("float32")


class Embedding(keras.Model):
    """Metric learning: the labels are made in the step, the loss is the compiled one."""

    def __init__(self) -> None:
        super().__init__()
        self.network = dense(4, 8, 4, name="network")

    def call(self, x: Any) -> Any:
        embedded = self.network(x)
        return embedded / ops.norm(embedded, axis=1, keepdims=True)

    def train_step(self, data: Any) -> Mapping[str, Any]:
        if isinstance(data, tuple):
            data = data[0]
        anchors, positives = data[0], data[1]
        with tf.GradientTape() as tape:
            similar = ops.einsum("ae,pe->ap", self(anchors), self(positives)) / 0.2
            labels = ops.arange(6)
            loss = self.compute_loss(y=labels, y_pred=similar)
        update(self.optimizer, tape, loss, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(labels, similar)
        return {metric.name: metric.result() for metric in self.metrics}


def metric_learning() -> keras.Model:
    model = Embedding()
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    return model


def triplets(seed: int) -> Any:
    anchor = points(seed)
    near = anchor + 0.1 * points(seed + 20)
    return {"anchor": anchor, "near": near, "far": points(seed + 30)}


class Siamese(Logged):
    """A triplet loss over a network whose first layers are pretrained and frozen."""

    names = ("loss",)

    def __init__(self) -> None:
        super().__init__()
        base = keras.Sequential(
            [keras.Input((4,)), layers.Dense(8, "relu"), layers.BatchNormalization()], name="base"
        )
        base.trainable = False
        self.network = keras.Sequential(
            [keras.Input((4,)), base, layers.Dense(4)], name="embedding"
        )

    def call(self, inputs: Any) -> Any:
        anchor, near, far = (self.network(inputs[name]) for name in ("anchor", "near", "far"))
        return ops.sum((anchor - near) ** 2, -1), ops.sum((anchor - far) ** 2, -1)

    def loss_of(self, data: Any) -> Any:
        near, far = self(data)
        return ops.mean(ops.maximum(near - far + 0.5, 0.0))

    def train_step(self, data: Any) -> Mapping[str, Any]:
        with tf.GradientTape() as tape:
            loss = self.loss_of(data)
        update(self.optimizer, tape, loss, self.network.trainable_weights)
        return self.tracked([loss])

    def test_step(self, data: Any) -> Mapping[str, Any]:
        return self.tracked([self.loss_of(data)])


def siamese() -> keras.Model:
    model = Siamese()
    model.compile(optimizer=keras.optimizers.Adam(1e-2))
    return model


class Contrastive(keras.losses.Loss):
    """Pulls examples of one class together."""

    def call(self, labels: Any, embedded: Any) -> Any:
        labels = ops.reshape(labels, (-1, 1))
        same = ops.cast(ops.equal(labels, ops.transpose(labels)), "float32")
        embedded = embedded / ops.norm(embedded, axis=1, keepdims=True)
        logits = ops.matmul(embedded, ops.transpose(embedded)) / 0.2
        same = same / ops.sum(same, axis=1, keepdims=True)
        return ops.categorical_crossentropy(same, logits, from_logits=True)


def _encoder() -> keras.Sequential:
    return dense(4, 8, 4, name="encoder")


def supervised_contrastive() -> keras.Model:
    """The first stage: the encoder with a projection."""
    inputs = keras.Input((4,))
    projected = layers.Dense(3, name="projection")(_encoder()(inputs))
    model = keras.Model(inputs, projected)
    model.compile(keras.optimizers.Adam(1e-2), Contrastive())
    return model


def contrastive_classifier(frozen: bool = True) -> keras.Model:
    """The second stage on a frozen encoder, and the third on all of it."""
    inputs, encoder = keras.Input((4,)), _encoder()
    encoder.trainable = not frozen
    model = keras.Model(inputs, layers.Dense(2, "softmax", name="classifier")(encoder(inputs)))
    model.compile(
        keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def masked_tokens(seed: int) -> Any:
    words = tokens(seed)
    masked = np.random.default_rng(seed + 1).uniform(size=words.shape) < 0.3
    return np.where(masked, 0, words), words, masked.astype("float32")


class MaskedLanguageModel(keras.Model):
    """The loss counts masked words only; a metric of the model's own tracks it."""

    loss_tracker: Any = None

    def train_step(self, inputs: Any) -> Mapping[str, Any]:
        features, labels, weights = inputs
        with tf.GradientTape() as tape:
            predictions = self(features, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, predictions)
            loss = ops.sum(losses * weights) / ops.sum(weights)
        update(self.optimizer, tape, loss, self.trainable_variables)
        self.tracker.update_state(loss, sample_weight=ops.sum(weights))
        return {"loss": self.tracker.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]


def _reader(inputs: Any) -> Any:
    x = layers.Embedding(20, 8, name="words")(inputs)
    # The gradient of a key's bias is zero, but for rounding, which Adam would scale up.
    attended = layers.MultiHeadAttention(2, 4, use_bias=False, name="attention")(x, x, x)
    attended = layers.Dropout(0.1, seed=5)(attended)
    return layers.LayerNormalization(name="norm")(x + attended)


def masked_language_model() -> keras.Model:
    inputs = keras.Input((8,), dtype="int64")
    head = layers.Dense(20, "softmax", name="head")
    model = MaskedLanguageModel(inputs, head(_reader(inputs)), name="bert")
    model.tracker = keras.metrics.Mean(name="loss")
    model.compile(optimizer=keras.optimizers.Adam(1e-2))
    return model


def word_classes(seed: int) -> Any:
    words = tokens(seed)
    return words, (words.sum(axis=1) > 80).astype("int32")


def text_classifier() -> keras.Model:
    """Reads as the masked language model does; first frozen, then not."""
    inputs = keras.Input((8,), dtype="int64")
    pooled = layers.GlobalMaxPooling1D()(_reader(inputs))
    model = keras.Model(inputs, layers.Dense(2, "softmax", name="classifier")(pooled))
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy")
    return model


class SimSiam(Logged):
    """Two views of an example, a predictor, a schedule, and stopped gradients."""

    names = ("loss",)

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential(
            [keras.Input((4,)), layers.Dense(8), layers.BatchNormalization(), layers.Dense(4)],
            name="encoder",
        )
        self.predictor = dense(4, 4, 4, name="predictor")

    def call(self, x: Any) -> Any:
        return self.encoder(x)

    def train_step(self, data: Any) -> Mapping[str, Any]:
        views = tf.unstack(data, axis=1)
        with tf.GradientTape() as tape:
            z = [self.encoder(view, training=True) for view in views]
            p = [self.predictor(view, training=True) for view in z]
            loss = (self.distance(p[0], z[1]) + self.distance(p[1], z[0])) / 2
        weights = self.encoder.trainable_variables + self.predictor.trainable_variables
        update(self.optimizer, tape, loss, weights)
        return self.tracked([loss])

    @staticmethod
    def distance(predicted: Any, target: Any) -> Any:
        target = ops.stop_gradient(target)
        lengths = ops.norm(predicted, axis=1) * ops.norm(target, axis=1)
        return -ops.mean(ops.sum(predicted * target, axis=1) / lengths)


def views(seed: int) -> Any:
    noise = np.stack([points(seed + 40), points(seed + 50)], axis=1)
    return points(seed)[:, None] + 0.1 * noise


def sim_siam() -> keras.Model:
    model = SimSiam()
    rate = keras.optimizers.schedules.CosineDecay(0.05, 40)
    model.compile(optimizer=keras.optimizers.SGD(rate, momentum=0.6))
    return model


class MaskedAutoencoder(keras.Model):
    """Random patches go to an encoder, the rest are guessed; `calculate_loss` as in Keras."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = layers.Dense(8, "gelu", name="encoder")
        self.decoder = keras.Sequential([layers.Dense(8, "tanh"), layers.Dense(2)], name="decoder")
        self.encoder.build((None, 6, 2))
        self.decoder.build((None, 3, 8))
        self.token = self.add_weight(name="token", shape=(8,), initializer="random_normal")
        self.seed = keras.random.SeedGenerator(6)

    def call(self, patches: Any) -> Any:
        return ops.mean(self.encoder(patches), axis=1)

    def calculate_loss(self, patches: Any, test: bool = False) -> Any:
        order = ops.argsort(keras.random.uniform(ops.shape(patches)[:2], seed=self.seed), axis=-1)
        hidden, seen = order[:, :3], order[:, 3:]
        encoded = self.encoder(ops.take_along_axis(patches, seen[..., None], axis=1))
        context = ops.mean(encoded, axis=1, keepdims=True)
        guessed = self.decoder(context + self.token + 0.1 * ops.cast(hidden[..., None], "float32"))
        truth = ops.take_along_axis(patches, hidden[..., None], axis=1)
        return self.compute_loss(y=truth, y_pred=guessed), truth, guessed

    def train_step(self, patches: Any) -> Mapping[str, Any]:
        with tf.GradientTape() as tape:
            loss, truth, guessed = self.calculate_loss(patches)
        parts = [*self.encoder.trainable_variables, *self.decoder.trainable_variables, self.token]
        update(self.optimizer, tape, loss, parts)
        return self.logs(loss, truth, guessed)

    def test_step(self, patches: Any) -> Mapping[str, Any]:
        return self.logs(*self.calculate_loss(patches))

    def logs(self, loss: Any, truth: Any, guessed: Any) -> Mapping[str, Any]:
        return {**self.compute_metrics(None, truth, guessed), "loss": loss}


def patches(seed: int) -> Any:
    return points(seed, 12).reshape(-1, 6, 2)


def masked_autoencoder() -> keras.Model:
    model = MaskedAutoencoder()
    model.compile(
        keras.optimizers.AdamW(keras.optimizers.schedules.ExponentialDecay(1e-2, 10, 0.9)),
        keras.losses.MeanSquaredError(),
        metrics=["mae"],
    )
    return model
