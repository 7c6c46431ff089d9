"""Constructs of Keras and TensorFlow, each in a small program: its layers, loss and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.support.fitted import BATCH, EXAMPLES, Program

Function = Callable[[Any], Any]
WIDTH, WORDS = 10, 30


def _numbers() -> Any:
    return np.random.default_rng(0).normal(size=(EXAMPLES, WIDTH)).astype(np.float32)


def _words() -> Any:
    return np.random.default_rng(1).integers(0, WORDS, (EXAMPLES, WIDTH)).astype(np.int32)


def _texts() -> Any:
    names = np.asarray(["red", "green", "blue", "grey", "black", "white"])
    return np.asarray([" ".join(names[row % 6]) for row in _words()])


def _targets() -> Any:
    return _numbers()[:, :1]


class Of(layers.Layer):
    """A function as a layer."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def call(self, inputs: Any) -> Any:
        return self.function(inputs)


class Cell(layers.Layer):
    """A recurrent cell."""

    state_size = 6

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], 6))
        self.recurrent = self.add_weight(shape=(6, 6))

    def call(self, inputs: Any, states: Any) -> Any:
        output = ops.tanh(inputs @ self.kernel + states[0] @ self.recurrent)
        return output, [output]


class InPython(layers.Layer):
    """Doubles its inputs in Python."""

    def call(self, inputs: Any) -> Any:
        doubled = tf.numpy_function(lambda value: value * 2, [inputs], tf.float32)
        return tf.ensure_shape(doubled, inputs.shape)


class Compares(layers.Layer):
    """Compares tensors by `==` and `!=`, as users write it."""

    def call(self, inputs: Any) -> Any:
        signs = ops.sign(inputs)
        return inputs * ops.cast(signs == 1.0, "float32") + ops.cast(signs != 1.0, "float32")


class Ragged(keras.Model):
    """Takes ragged words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = layers.Embedding(WORDS, 4), layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.head(tf.reduce_mean(self.embedding(inputs.to_tensor()), 1))


class Teacher(keras.Model):
    """Uses what was made before it: a constant, and a model that its constructor has trained."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = ops.convert_to_tensor(np.float32(0.5))
        self.teacher = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(1)])
        self.teacher.compile("sgd", "mse")
        self.teacher.fit(_numbers(), _targets(), epochs=2, verbose=0)
        self.teacher.trainable = False
        self.student = layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.student(inputs) + self.factor * self.teacher(inputs)


class OwnStep(keras.Model):
    """Updates twice in a step, with a `tf.function`, and logs nested results."""

    def __init__(self) -> None:
        super().__init__()
        self.head = layers.Dense(1)
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> Any:
        return [self.tracker]

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs)

    @tf.function
    def inner(self, inputs: Any) -> Any:
        return self.head(inputs)

    def train_step(self, data: Any) -> Any:
        inputs, labels = data
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.inner(inputs) - labels) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data: Any) -> Any:
        self.tracker.update_state(tf.reduce_mean((self.inner(data[0]) - data[1]) ** 2))
        return {"loss": self.tracker.result()}


class Generates(layers.Layer):
    """Adds noise of a `tf.random.Generator`."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = tf.random.Generator.from_seed(7)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return inputs + self.generator.normal([WIDTH], stddev=0.1) if training else inputs


def _ctc(labels: Any, outputs: Any) -> Any:
    return tf.reduce_mean(
        tf.nn.ctc_loss(
            labels=tf.cast(labels, tf.int32),
            logits=tf.transpose(outputs, [1, 0, 2]),
            label_length=tf.fill([tf.shape(outputs)[0]], 2),
            logit_length=tf.fill([tf.shape(outputs)[0]], 5),
            blank_index=0,
        )
    )


def _masked(labels: Any, outputs: Any) -> Any:
    mask = ops.cast(labels != labels[0], "float32")
    return ops.sum(mask * ops.square(labels - outputs)) / (ops.sum(mask) + 1.0)


def _sequential(*parts: Any, dtype: str | None = None, **inputs: Any) -> keras.Model:
    shape = inputs.pop("shape", (WIDTH,))
    return keras.Sequential([keras.Input(shape, dtype=dtype, **inputs), *parts])


def _of_words(*parts: Any) -> keras.Model:
    return _sequential(layers.Embedding(WORDS, 6, mask_zero=True), *parts, dtype="int32")


def _attention() -> keras.Model:
    inputs = keras.Input((WIDTH,), dtype="int32")
    embedded = layers.Embedding(WORDS, 8, mask_zero=True)(inputs)
    attended = layers.MultiHeadAttention(2, 4, dropout=0.1)(
        embedded, embedded, use_causal_mask=True
    )
    return keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(attended)))


def _shared_norm() -> keras.Model:
    inputs, dense, norm = keras.Input((WIDTH,)), layers.Dense(WIDTH), layers.BatchNormalization()
    return keras.Model(inputs, layers.Dense(1)(norm(dense(norm(dense(inputs))))))


def _adapted(layer: Any, data: Any) -> Any:
    layer.adapt(data)
    return layer


def _texts_model() -> keras.Model:
    vectors = _adapted(layers.TextVectorization(20, output_sequence_length=6), _texts())
    return _sequential(
        vectors,
        layers.Embedding(20, 4, mask_zero=True),
        layers.GRU(4),
        layers.Dense(1),
        shape=(),
        dtype="string",
    )


def _lookup_model() -> keras.Model:
    vocabulary = ["red", "green", "blue", "grey"]
    lookup = layers.StringLookup(vocabulary=vocabulary, output_mode="one_hot")
    first = Of(lambda texts: tf.strings.split(texts, " ").to_tensor(shape=[None, WIDTH])[:, 0])
    return _sequential(first, lookup, layers.Dense(1), shape=(), dtype="string")


def _named_oddly() -> keras.Model:
    inputs = keras.Input((WIDTH,), name="in-put.1")
    hidden = layers.Dense(4, "tanh", name="_a.layer-1>x")(inputs)
    return keras.Model(inputs, layers.Dense(1, name="1.head")(hidden), name="my.model-1")


def _images(*parts: Any) -> keras.Model:
    return _sequential(layers.Reshape((5, 2, 1)), *parts, layers.Flatten(), layers.Dense(1))


def _custom_gradient(inputs: Any) -> Any:
    @tf.custom_gradient
    def doubled(value: Any) -> Any:
        return tf.identity(value), lambda upstream: upstream * 2

    return doubled(inputs)


def _program(
    model: Callable[[], keras.Model],
    features: Callable[[], Any] = _numbers,
    *,
    loss: Any = "mse",
    labels: Callable[[], Any] = _targets,
    optimizer: Callable[[], Any] = lambda: keras.optimizers.Adam(0.01),
    mapped: Callable[[Any, Any], Any] | None = None,
) -> Program:
    def compiled() -> keras.Model:
        built = model()
        built.compile(optimizer(), loss, jit_compile=False)
        return built

    def data() -> tf.data.Dataset:
        batches = tf.data.Dataset.from_tensor_slices((features(), labels())).batch(BATCH)
        return batches if mapped is None else batches.map(mapped)

    return Program(compiled, data)


def _frames() -> Any:
    return _numbers().reshape(EXAMPLES, 5, 2)


def _codes() -> Any:
    return np.random.default_rng(2).integers(1, 6, (EXAMPLES, 2)).astype(np.int32)


def _with(function: Function) -> Callable[[], keras.Model]:
    return lambda: _sequential(layers.Dense(WIDTH), Of(function), layers.Dense(1))


def _scanned(inputs: Any) -> Any:
    return tf.transpose(tf.scan(lambda total, value: total + value, tf.transpose(inputs)))


def _looped(inputs: Any) -> Any:
    looped = ops.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, v * 0.9), (0, inputs))[1]
    return ops.cond(ops.sum(looped) > 0, lambda: looped, lambda: -looped)


def _linear_algebra(inputs: Any) -> Any:
    spectrum = tf.abs(tf.signal.fft(tf.cast(inputs, tf.complex64)))
    return tf.linalg.matvec(tf.linalg.cholesky(tf.eye(WIDTH) * 2), spectrum)


CONSTRUCTS: Mapping[str, Program] = {
    "labels compared in a loss": _program(_with(lambda x: x), loss=_masked),
    "tensors compared in a layer": _program(lambda: _sequential(Compares(), layers.Dense(1))),
    "CTC": _program(
        lambda: _sequential(layers.Dense(35), layers.Reshape((5, 7))), loss=_ctc, labels=_codes
    ),
    "scan and map_fn": _program(
        lambda: _sequential(
            Of(_scanned), Of(lambda x: tf.map_fn(lambda v: v * v, x)), layers.Dense(1)
        )
    ),
    "vectorized_map": _program(
        lambda: _sequential(
            Of(lambda x: tf.vectorized_map(lambda v: v * tf.reduce_sum(v), x)), layers.Dense(1)
        )
    ),
    "while_loop and cond": _program(_with(_looped)),
    "sparse gradients": _program(
        lambda: _sequential(
            layers.Embedding(WORDS, 6),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
            dtype="int32",
        ),
        _words,
        optimizer=lambda: keras.optimizers.Adagrad(0.1),
    ),
    "causal attention": _program(_attention, _words),
    "own cell": _program(
        lambda: _sequential(layers.Reshape((5, 2)), layers.RNN(Cell()), layers.Dense(1))
    ),
    "masked LSTM": _program(
        lambda: _of_words(layers.LSTM(5, dropout=0.2), layers.Dense(1)), _words
    ),
    "bidirectional GRU": _program(
        lambda: _of_words(
            layers.Bidirectional(layers.GRU(5, recurrent_dropout=0.2)), layers.Dense(1)
        ),
        _words,
    ),
    "stateful LSTM": _program(
        lambda: _sequential(
            layers.LSTM(4, stateful=True), layers.Dense(1), shape=(5, 2), batch_size=BATCH
        ),
        _frames,
    ),
    "convolutional LSTM": _program(
        lambda: _sequential(
            layers.Reshape((5, 2, 1)), layers.ConvLSTM1D(2, 2), layers.Flatten(), layers.Dense(1)
        )
    ),
    "ragged words": _program(
        Ragged, _words, mapped=lambda x, y: (tf.RaggedTensor.from_tensor(x), y)
    ),
    "Python in a step": _program(lambda: _sequential(InPython(), layers.Dense(1))),
    "own step": _program(OwnStep, loss=None),
    "shared batch norm": _program(_shared_norm),
    "normalization": _program(
        lambda: _sequential(_adapted(layers.Normalization(), _numbers()), layers.Dense(1))
    ),
    "discretization": _program(
        lambda: _sequential(
            layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0]),
            layers.Embedding(4, 3),
            layers.Flatten(),
            layers.Dense(1),
        )
    ),
    "integer lookup": _program(
        lambda: _sequential(
            layers.IntegerLookup(vocabulary=[3, 5, 7, 9], output_mode="count"),
            layers.Dense(1),
            dtype="int64",
        ),
        lambda: _words().astype(np.int64),
    ),
    "string lookup": _program(_lookup_model, _texts),
    "text vectors": _program(_texts_model, _texts),
    "hashed words": _program(
        lambda: _sequential(
            layers.Hashing(11), layers.Embedding(11, 3), layers.Flatten(), layers.Dense(1),
            dtype="int32",
        ),
        _words,
    ),
    "spectral norm": _program(
        lambda: _sequential(layers.SpectralNormalization(layers.Dense(8)), layers.Dense(1))
    ),
    "augmentation": _program(
        lambda: _images(
            layers.RandomZoom(0.2),
            layers.RandomTranslation(0.1, 0.1),
            layers.RandomContrast(0.2),
            layers.RandomFlip(),
            layers.GaussianNoise(0.1),
        )
    ),
    "own generator": _program(lambda: _sequential(Generates(), layers.Dense(1))),
    "custom gradient": _program(_with(_custom_gradient)),
    "Fourier and Cholesky": _program(
        lambda: _sequential(Of(_linear_algebra), layers.Dense(1))
    ),
    "teacher and constant": _program(Teacher),
    "odd names": _program(_named_oddly),
}  # fmt: skip
