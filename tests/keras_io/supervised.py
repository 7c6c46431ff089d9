"""Programs with labels: losses in layers, tables, tokens, graphs, class weights."""

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


def endpoint_data(seed: int) -> Any:
    features, targets = labelled(seed)
    return {"features": features, "targets": targets[:, None].astype("float32")}


class LogisticEndpoint(layers.Layer):
    """Takes the targets as an input, and adds its loss and its accuracy."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.accuracy = keras.metrics.BinaryAccuracy(name="accuracy")

    def call(self, targets: Any, logits: Any, sample_weights: Any = None) -> Any:
        self.add_loss(self.loss_fn(targets, logits, sample_weights))
        self.accuracy.update_state(targets, logits, sample_weights)
        return ops.sigmoid(logits)


def endpoint_layer() -> keras.Model:
    inputs = keras.Input((4,), name="features")
    targets = keras.Input((1,), name="targets")
    logits = layers.Dense(1)(layers.Dense(8, "relu")(inputs))
    predictions = LogisticEndpoint(name="predictions")(targets, logits)
    model = keras.Model({"features": inputs, "targets": targets}, predictions)
    model.compile(keras.optimizers.Adam(1e-2))
    return model


class OwnTestStep(keras.Model):
    """Only `test_step` is its own; the training step is Keras's, with `add_loss`."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.normed = dense(4, 8, 2, name="body"), layers.BatchNormalization()

    def call(self, x: Any, training: bool = False) -> Any:
        logits = self.body(self.normed(x, training=training))
        self.add_loss(0.01 * tf.reduce_mean(logits**2))
        return logits

    def test_step(self, data: Any) -> Mapping[str, Any]:
        x, y = data
        right = tf.argmax(self(x, training=False), 1, tf.int32) == y
        return {"loss": tf.reduce_mean(1.0 - tf.cast(right, tf.float32))}


def own_test_step() -> keras.Model:
    model = OwnTestStep()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-2), loss, metrics=["accuracy"])
    return model


def captchas(seed: int) -> Any:
    return {"image": points(seed, 36).reshape(-1, 6, 6), "label": tokens(seed, 3, 8)}


class CTCLayer(layers.Layer):
    """Adds the loss of a sequence of unknown alignment."""

    def call(self, labels: Any, predicted: Any) -> Any:
        batch = ops.shape(predicted)[0]
        lengths = [ops.tile([size], [batch]) for size in (labels.shape[1], predicted.shape[1])]
        losses = ops.ctc_loss(labels, predicted, *lengths, mask_index=0)
        self.add_loss(ops.mean(losses))
        return predicted


def ctc_captcha() -> keras.Model:
    image = keras.Input((6, 6), name="image")
    labels = keras.Input((3,), name="label", dtype="int32")
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True, dropout=0.2, seed=7))(image)
    outputs = CTCLayer(name="ctc")(labels, layers.Dense(9, name="letters")(x))
    model = keras.Model([image, labels], outputs)
    model.compile(optimizer=keras.optimizers.Adam(1e-2))
    return model


COLOURS = ("red", "green", "blue", "grey")


def strings(seed: int) -> Any:
    drawn = np.random.default_rng(seed)
    colours = drawn.choice([*COLOURS, "mauve"], size=48)
    sentences = np.array([" ".join(words) for words in drawn.choice(COLOURS, size=(48, 3))])
    ages = drawn.uniform(20, 60, (48, 1)).astype("float32")
    return (
        {"colour": colours[:, None], "sentence": sentences[:, None], "age": ages},
        (colours == "red").astype("float32"),
    )


def strings_and_tables() -> keras.Model:
    """Strings, a vocabulary, hashes, a static table, and layers that adapt to their data."""
    data = strings(8)[0]
    colour, sentence, age = (
        keras.Input((1,), name=name, dtype=dtype)
        for name, dtype in (("colour", "string"), ("sentence", "string"), ("age", "float32"))
    )
    lookup = layers.StringLookup(vocabulary=list(COLOURS), output_mode="one_hot")
    embedded = layers.StringLookup()
    embedded.adapt(data["colour"])
    vectorize = layers.TextVectorization(output_mode="int", output_sequence_length=3)
    vectorize.adapt(tf.data.Dataset.from_tensor_slices(data["sentence"][:, 0]).batch(7))
    scaled = layers.Normalization()
    scaled.adapt(data["age"])
    binned = layers.Discretization(num_bins=3, output_mode="one_hot")
    binned.adapt(data["age"])
    parts = [
        lookup(colour),
        layers.Hashing(5, output_mode="one_hot")(colour),
        layers.Flatten()(layers.Embedding(embedded.vocabulary_size(), 2)(embedded(colour))),
        layers.Flatten()(layers.Embedding(vectorize.vocabulary_size(), 2)(vectorize(sentence))),
        scaled(age),
        binned(age),
    ]
    logits = layers.Dense(1, "sigmoid")(layers.Concatenate()(parts))
    model = keras.Model({"colour": colour, "sentence": sentence, "age": age}, logits)
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=["accuracy"])
    return model


def word_data(seed: int) -> Any:
    words = tokens(seed)
    return words, (words.sum(axis=1) > 80).astype("int32")


def word_vectors() -> keras.Model:
    """An embedding that starts from given vectors, and does not train."""
    vectors = np.random.default_rng(5).normal(size=(20, 6)).astype("float32")
    embedding = layers.Embedding(
        20, 6, embeddings_initializer=keras.initializers.Constant(vectors), trainable=False
    )
    inputs = keras.Input((8,), dtype="int64")
    x = layers.GlobalMaxPooling1D()(layers.Conv1D(4, 3, activation="relu")(embedding(inputs)))
    model = keras.Model(inputs, layers.Dense(2, "softmax")(layers.Dropout(0.5, seed=8)(x)))
    model.compile(
        keras.optimizers.RMSprop(1e-2), "sparse_categorical_crossentropy", metrics=["acc"]
    )
    return model


def fraud() -> keras.Model:
    """Class weights, and metrics with thresholds."""
    model = dense(4, 8, 1, name="fraud")
    model.add(layers.Activation("sigmoid"))
    model.compile(
        keras.optimizers.Adam(1e-2),
        "binary_crossentropy",
        metrics=[keras.metrics.Precision(name="precision"), keras.metrics.Recall(name="recall")],
    )
    return model


class Switch(layers.Layer):
    """A mixture of experts with a loss that balances them."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = layers.Dense(3), [layers.Dense(4, "relu") for _ in range(3)]

    def call(self, x: Any) -> Any:
        probability = ops.softmax(self.router(x))
        chosen = ops.one_hot(ops.argmax(probability, axis=-1), 3)
        self.add_loss(0.1 * 3 * ops.sum(ops.mean(chosen, axis=0) * ops.mean(probability, axis=0)))
        outputs = ops.stack([expert(x) for expert in self.experts], axis=1)
        return ops.sum(outputs * (chosen * probability)[..., None], axis=1)


def mixture_of_experts() -> keras.Model:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(2, "softmax")(Switch()(inputs)))
    model.compile(
        keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


EDGES = np.random.default_rng(3).integers(0, 12, (30, 2))


class GraphAttention(keras.Model):
    """Attention over the edges of one graph, which the model holds; a batch is of node indices."""

    def __init__(self) -> None:
        super().__init__()
        self.states, self.edges = tf.constant(points(3)[:12]), tf.constant(EDGES, "int32")
        self.transform, self.head = layers.Dense(6), layers.Dense(2)
        self.score = layers.Dense(1, use_bias=False)

    def call(self, nodes: Any) -> Any:
        states = self.transform(self.states)
        pairs = ops.reshape(tf.gather(states, self.edges), (-1, 12))
        scores = ops.exp(ops.clip(ops.leaky_relu(self.score(pairs))[:, 0], -2, 2))
        sums = tf.math.unsorted_segment_sum(scores, self.edges[:, 0], 12)
        weighted = (
            tf.gather(states, self.edges[:, 1])
            * (scores / tf.gather(sums, self.edges[:, 0]))[:, None]
        )
        attended = tf.math.unsorted_segment_sum(weighted, self.edges[:, 0], 12)
        return ops.take(self.head(states + attended), nodes, axis=0)

    def train_step(self, data: Any) -> Any:
        nodes, labels = data
        with tf.GradientTape() as tape:
            outputs = self(nodes, training=True)
            loss = self.compiled_loss_of(labels, outputs)
        grads = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        return self.compute_metrics(None, labels, outputs)

    def compiled_loss_of(self, labels: Any, outputs: Any) -> Any:
        return self.compute_loss(y=labels, y_pred=outputs)

    def predict_step(self, data: Any) -> Any:
        nodes, *_ = keras.utils.unpack_x_y_sample_weight(data)
        return ops.softmax(self(nodes, training=False))

    def test_step(self, data: Any) -> Any:
        nodes, labels = data
        outputs = self(nodes, training=False)
        self.compiled_loss_of(labels, outputs)
        return self.compute_metrics(None, labels, outputs)


def nodes(seed: int) -> Any:
    drawn = np.random.default_rng(seed).integers(0, 12, 48).astype("int32")
    return drawn, drawn % 2


def graph_attention() -> keras.Model:
    model = GraphAttention()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    return model


def sentences(seed: int) -> Any:
    words = tokens(seed, 9)
    return words[:, :-1], words[:, 1:]


def causal_attention(x: Any) -> Any:
    attended = layers.MultiHeadAttention(2, 4, dropout=0.1, seed=9)(x, x, use_causal_mask=True)
    return layers.LayerNormalization(epsilon=1e-6)(x + attended)


def small_gpt() -> keras.Model:
    """Two outputs, of which one has a loss."""
    inputs = keras.Input((8,), dtype="int32")
    x = causal_attention(layers.Embedding(20, 8)(inputs))
    model = keras.Model(inputs, [layers.Dense(20, name="logits")(x), x])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss=[loss, None])
    return model


def captions(seed: int) -> Any:
    return points(seed), np.stack([tokens(seed + index, 6) for index in range(3)], axis=1)


class Captioner(Logged):
    """Several captions of an image: their losses add up, the parts are updated together."""

    names = ("loss", "acc")

    def __init__(self) -> None:
        super().__init__()
        self.cnn, self.words = dense(4, 8, 8, name="cnn"), layers.Embedding(20, 8, mask_zero=True)
        self.decoder, self.head = layers.GRU(8, return_sequences=True), layers.Dense(20, "softmax")
        self.cnn.trainable = False

    def call(self, inputs: Any) -> Any:
        image, caption = inputs
        context = self.cnn(image)
        return self.head(self.decoder(self.words(caption), initial_state=context))

    def losses_of(self, image: Any, caption: Any) -> list[Any]:
        truth, mask = caption[:, 1:], ops.not_equal(caption[:, 1:], 0)
        predicted = self([image, caption[:, :-1]])
        loss = ops.mean(self.compute_loss(y=truth, y_pred=predicted))
        right = ops.logical_and(ops.equal(truth, ops.cast(ops.argmax(predicted, 2), "int32")), mask)
        return [loss, ops.mean(ops.cast(right, "float32"))]

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        image, several = batch
        total = accuracy = 0.0
        for index in range(3):
            with tf.GradientTape() as tape:
                loss, acc = self.losses_of(image, several[:, index])
            total, accuracy = total + loss, accuracy + acc
            update(self.optimizer, tape, loss, self.trainable_variables)
        return self.tracked([total, accuracy / 3.0])

    def test_step(self, batch: Any) -> Mapping[str, Any]:
        return self.tracked(self.losses_of(batch[0], batch[1][:, 0]))


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def get_config(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32")
        return ops.cond(step < self.steps, lambda: 0.01 * step / self.steps, lambda: 0.01)


def captioning() -> keras.Model:
    model = Captioner()
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="none")
    model.compile(optimizer=keras.optimizers.Adam(Warmup(5)), loss=loss)
    return model
