"""Constructs of Keras and TensorFlow, each in a small model, and the arguments of `fit` for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.keras_io.parts import points

X = points(0, 10)
Y = X[:, :1].copy()
CLASSES = (Y[:, 0] > 0).astype("int32")
WORDS = np.random.default_rng(1).integers(0, 30, (len(X), 10)).astype("int32")
ARRAYS = {"x": X, "y": Y, "batch_size": 8, "shuffle": False}


@dataclass(frozen=True)
class Construct:
    """A model, compiled, and what `fit` takes with it.

    Attributes:
      model: makes the model.
      arguments: makes the arguments of `fit`, which may be generators or callbacks.
    """

    model: Callable[[], keras.Model]
    arguments: Callable[[], Mapping[str, Any]] = field(default=lambda: ARRAYS)

    def fit_arguments(self) -> dict[str, Any]:
        """Returns the arguments of `fit`, with two epochs where they say nothing else."""
        return {"epochs": 2, **self.arguments()}


class Apply(layers.Layer):
    """A layer of a function."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def call(self, inputs: Any) -> Any:
        return self.function(inputs)


def small(*parts: layers.Layer, dtype: str | None = None, **compiled: Any) -> keras.Model:
    """Returns a compiled model of layers that ends in one number."""
    inputs = keras.Input((10,), dtype=dtype)
    model = keras.Sequential([inputs, *parts, layers.Dense(1)])
    model.compile(**{"optimizer": "adam", "loss": "mse", "jit_compile": False, **compiled})
    return model


def of(function: Callable[[Any], Any]) -> Callable[[], keras.Model]:
    return lambda: small(Apply(function))


def masked_loss(truth: Any, predicted: Any) -> Any:
    """Compares by `!=`, which in a graph of TensorFlow 1 would be that of Python."""
    known = ops.cast(truth != -1.0, "float32")
    return ops.sum(known * (truth - predicted) ** 2) / ops.sum(known)


class OwnMetrics(keras.Model):
    """Overrides `compute_metrics`."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1)
        self.largest = keras.metrics.Mean(name="largest")

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        self.largest.update_state(ops.max(y_pred))
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "doubled": ops.sum(y) * 2}


def own_metrics() -> keras.Model:
    model = OwnMetrics()
    model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
    return model


def two_outputs() -> keras.Model:
    inputs = keras.Input((10,))
    hidden = layers.Dense(4, "tanh")(inputs)
    model = keras.Model(inputs, [layers.Dense(1)(hidden), layers.Dense(2, "softmax")(hidden)])
    losses = ["mse", "sparse_categorical_crossentropy"]
    model.compile("adam", losses, loss_weights=[1.0, 0.5], jit_compile=False)
    return model


def with_constant() -> keras.Model:
    scale = ops.convert_to_tensor(np.linspace(1, 2, 10).astype("float32"))
    return small(Apply(lambda inputs: inputs * scale))


class Distilled(keras.Model):
    """Learns from a teacher that was trained before."""

    def __init__(self, teacher: keras.Model) -> None:
        super().__init__()
        self.teacher, self.student = teacher, layers.Dense(1)
        self.teacher.trainable = False

    def call(self, inputs: Any) -> Any:
        return self.student(inputs)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        return ops.mean((self.teacher(x) - y_pred) ** 2) + ops.mean((y - y_pred) ** 2)


def trained() -> keras.Model:
    model = small(layers.Dense(4, "tanh"))
    model.fit(**ARRAYS, epochs=1, verbose=0)
    return model


def distilled() -> keras.Model:
    model = Distilled(trained())
    model.compile("adam", jit_compile=False)
    return model


def looked_up() -> keras.Model:
    lookup = layers.StringLookup(vocabulary=["a", "b"])
    inputs = keras.Input((3,), dtype="string")
    hidden = layers.Flatten()(layers.Embedding(3, 4)(lookup(inputs)))
    model = keras.Model(inputs, layers.Dense(1)(hidden))
    model.compile("adam", "mse", jit_compile=False)
    return model


def strings() -> Mapping[str, Any]:
    drawn = np.random.default_rng(2).choice(["a", "b", "c"], (len(X), 3))
    return {**ARRAYS, "x": tf.constant(drawn)}


def attention() -> keras.Model:
    inputs = keras.Input((10,), dtype="int32")
    embedded = layers.Embedding(30, 8, mask_zero=True)(inputs)
    attended = layers.MultiHeadAttention(2, 4, dropout=0.1)(
        embedded, embedded, use_causal_mask=True
    )
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(attended)))
    model.compile("adam", "mse", jit_compile=False)
    return model


def adapted() -> keras.Model:
    normalization = layers.Normalization()
    normalization.adapt(X)
    return small(normalization, layers.BatchNormalization(), layers.Dropout(0.3, seed=1))


def classes(**compiled: Any) -> keras.Model:
    return small(
        layers.Dense(4, "relu"),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.AUC(from_logits=True)],
        weighted_metrics=["accuracy"],
        **compiled,
    )


def batches() -> Iterator[Any]:
    for begin in range(0, len(X), 8):
        yield X[begin : begin + 8], Y[begin : begin + 8]


class Numbered(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return X[8 * index : 8 * index + 8], Y[8 * index : 8 * index + 8]


class Changing(Numbered):
    """Has other batches after every epoch."""

    epoch = 0

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + self.epoch, y

    def on_epoch_end(self) -> None:
        self.epoch += 1


def dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)


def of_unknown_length() -> tf.data.Dataset:
    return dataset().unbatch().filter(lambda x, y: y[0] > -1).batch(8)


def mapped(function: Callable[[Any], Any]) -> Callable[[], Mapping[str, Any]]:
    return lambda: {"x": dataset().map(lambda x, y: (function(x), y)), "shuffle": False}


def doubled(array: Any) -> Any:
    return array * 2


def python_function(x: Any) -> Any:
    return tf.ensure_shape(tf.py_function(doubled, [x], tf.float32), [None, 10])


def noise() -> Mapping[str, Any]:
    layer = layers.GaussianNoise(0.1, seed=3)
    return mapped(lambda x: layer(x, training=True))()


def words_in_map() -> Mapping[str, Any]:
    lookup = layers.StringLookup(vocabulary=["low", "high"], num_oov_indices=0)
    labels = tf.data.Dataset.from_tensor_slices(np.where(CLASSES, "high", "low")).batch(8)
    pairs = tf.data.Dataset.zip((dataset(), labels))
    return {"x": pairs.map(lambda batch, word: (batch[0], lookup(word))), "shuffle": False}


def generated() -> tf.data.Dataset:
    signature = (tf.TensorSpec([None, 10]), tf.TensorSpec([None, 1]))
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def adam(**settings: Any) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.01, **settings)


def averaged(**settings: Any) -> Callable[[], keras.Model]:
    optimizer = {"use_ema": True, "ema_momentum": 0.8, **settings}
    return lambda: small(layers.Dense(4, "relu"), optimizer=adam(**optimizer))


def dense(**compiled: Any) -> keras.Model:
    return small(layers.Dense(4, "relu"), metrics=["mae"], **compiled)


def dropped() -> keras.Model:
    return small(layers.Dense(4, "relu"), layers.Dropout(0.2), metrics=["mae"])


class ChangesLogs(keras.callbacks.Callback):
    """Sets the rate of every batch, and adds it to the logs of an epoch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.01 / (batch + 1)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["rate"] = self.model.optimizer.learning_rate.numpy()


class ResetsStates(keras.callbacks.Callback):
    """Begins every epoch without the states of a stateful layer, as in the guide to RNNs."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.layers[0].reset_state()


def stateful() -> keras.Model:
    inputs = keras.Input(batch_shape=(8, 5, 2))
    model = keras.Sequential([inputs, layers.LSTM(4, stateful=True), layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
    return model


def series() -> Mapping[str, Any]:
    return {**ARRAYS, "x": X.reshape(-1, 5, 2), "callbacks": [ResetsStates()]}


class Overwrites(keras.callbacks.Callback):
    """Changes the logs of an epoch, which later callbacks and the history have."""

    def __init__(self) -> None:  # Many leave out the call of `super`, which `fit` does not need.
        self.first = 10.0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["loss"] = self.first + epoch
        logs["val_loss"] = logs["loss"] * 2


def overwritten() -> Mapping[str, Any]:
    by_loss = [
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1),
        keras.callbacks.EarlyStopping("val_loss", patience=2),
    ]
    return with_validation(epochs=4, callbacks=[Overwrites(), *by_loss])()


class StopsWithin(keras.callbacks.Callback):
    """Stops the training within the second epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = int(self.model.optimizer.iterations) == 10


def double() -> keras.Model:
    keras.config.set_floatx("float64")
    try:
        return dense()
    finally:
        keras.config.set_floatx("float32")


class OwnStep(keras.Model):
    """Returns its metrics by name, as in the guide: those of `compile` are one, in fit's order."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> Any:
        features, labels = data
        with tf.GradientTape() as tape:
            predicted = self(features, training=True)
            loss = self.compute_loss(y=labels, y_pred=predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(labels, predicted)
        norm = ops.sum([ops.sum(gradient**2) for gradient in gradients])
        return {**{metric.name: metric.result() for metric in self.metrics}, "gradient": norm}


def own_step() -> keras.Model:
    model = OwnStep()
    model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
    return model


class Block(layers.Layer):
    """Makes its layers when it is built, with the random numbers of that time."""

    def build(self, input_shape: Any) -> None:
        self.parts = [layers.Dense(5, "relu"), layers.Dropout(0.3)]
        self.parts[0].build(input_shape)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.parts[1](self.parts[0](inputs), training=training)


def unbuilt() -> keras.Model:
    model = keras.Sequential([Block(), layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
    return model


class Counts(keras.metrics.Metric):
    """Counts batches, and never resets the number."""

    def __init__(self) -> None:
        super().__init__(name="batches")
        self.largest = self.add_weight(name="largest", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.count.assign_add(1.0)
        self.largest.assign(ops.maximum(self.largest, ops.max(y_pred)))

    def result(self) -> Any:
        return self.count + ops.sign(self.largest)

    def reset_state(self) -> None:
        self.largest.assign(0.0)


def ragged_model() -> keras.Model:
    parts = [layers.Embedding(30, 4), layers.GlobalAveragePooling1D(), layers.Dense(1)]
    model = keras.Sequential(parts)
    model.compile("adam", "mse", jit_compile=False)
    return model


def headless() -> keras.Model:
    """A model of which one output has no loss, and slots that are large enough to be freed."""
    inputs = keras.Input((10,))
    outputs = {name: layers.Dense(200, name=name)(inputs) for name in ("left", "right")}
    model = keras.Model(inputs, outputs)
    model.compile("adam", {"left": "mse"}, jit_compile=False)
    return model


def schedule_free() -> keras.Model:
    """Builds the optimizer: Keras 3.15 forgets its copy of the weights where its step does."""
    model = small(optimizer=keras.optimizers.ScheduleFreeAdamW(0.01))
    model.optimizer.build(model.trainable_variables)
    return model


def nested() -> keras.Model:
    """Takes and returns nested dictionaries; one output has no loss, another a metric alone."""
    inputs = {"left": keras.Input((4,)), "rest": {"right": keras.Input((6,))}}
    hidden = layers.Concatenate()([inputs["left"], inputs["rest"]["right"]])
    outputs = {name: layers.Dense(1, name=name)(hidden) for name in ("a", "b", "c")}
    model = keras.Model(inputs, outputs)
    losses = {"a": "mse", "b": "mae", "c": None}
    weighted = {"b": [keras.metrics.RootMeanSquaredError(name="rmse")]}
    model.compile(
        "adam",
        losses,
        loss_weights={"a": 1.0, "b": 0.3, "c": 1.0},
        metrics={"a": ["mae"], "c": ["mse"]},
        weighted_metrics=weighted,
        jit_compile=False,
    )
    return model


def nested_arrays() -> Mapping[str, Any]:
    return {
        **ARRAYS,
        "x": {"left": X[:, :4], "rest": {"right": X[:, 4:]}},
        "y": {"a": Y, "b": Y * 2, "c": Y},
        "sample_weight": {name: np.linspace(0, 1, len(X)) for name in ("a", "b", "c")},
    }


class Watched(layers.Layer):
    """Has a loss, a metric, a counter and random numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = keras.metrics.Mean(name="mean_input")
        self.seeds = keras.random.SeedGenerator(4)
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs: Any, training: bool = False) -> Any:
        self.mean.update_state(ops.mean(inputs))
        self.add_loss(0.01 * ops.mean(inputs**2))
        if training:
            self.count.assign_add(1.0)
            return inputs + keras.random.normal(ops.shape(inputs), seed=self.seeds)
        return inputs


def low_rank(*, quantized: bool) -> keras.Model:
    model = small(layers.Dense(8, "relu", name="hidden"))
    if quantized:
        model.quantize("int8")
    model.layers[0].enable_lora(2)
    model.compile("adam", "mse", jit_compile=False)
    return model


def tabular() -> keras.utils.FeatureSpace:
    space = keras.utils.FeatureSpace(
        {"word": "string_categorical", "number": "integer_categorical", "size": "float_normalized"},
        crosses=[("word", "number")],
        output_mode="concat",
    )
    space.adapt(rows().map(lambda row, label: row))
    return space


def rows() -> tf.data.Dataset:
    drawn = np.random.default_rng(5)
    row = {
        "word": drawn.choice(["a", "b", "c"], len(X)),
        "number": drawn.integers(0, 4, len(X)),
        "size": X[:, 0],
    }
    return tf.data.Dataset.from_tensor_slices((row, Y)).batch(8)


def of_features(*, encoded: bool) -> keras.Model:
    """Takes features, or what `tabular` encodes them to."""
    space = tabular()
    features = space.get_encoded_features()
    inputs = keras.Input(features.shape[1:]) if encoded else space.get_inputs()
    model = keras.Model(inputs, layers.Dense(1)(inputs if encoded else features))
    model.compile("adam", "mse", jit_compile=False)
    return model


def encoded_rows() -> Mapping[str, Any]:
    space = tabular()
    return {"x": rows().map(lambda row, label: (space(row), label))}


def categories() -> keras.Model:
    inputs = [
        keras.Input((1,), dtype="string"),
        keras.Input((1,), dtype="int64"),
        keras.Input((1,)),
    ]
    hashed = layers.CategoryEncoding(5, "one_hot")(layers.Hashing(5)(inputs[0]))
    known = layers.IntegerLookup(vocabulary=[1, 2, 3], output_mode="multi_hot")(inputs[1])
    bins = layers.CategoryEncoding(3, "one_hot")(layers.Discretization([-0.5, 0.5])(inputs[2]))
    model = keras.Model(inputs, layers.Dense(1)(layers.Concatenate()([hashed, known, bins])))
    model.compile("adam", "mse", jit_compile=False)
    return model


def of_categories() -> Mapping[str, Any]:
    drawn = np.random.default_rng(5)
    words = tf.constant(drawn.choice(["a", "b", "c"], (len(X), 1)))
    return {**ARRAYS, "x": [words, drawn.integers(0, 4, (len(X), 1)), X[:, :1]]}


def windows() -> Mapping[str, Any]:
    series = np.sin(np.arange(100) / 5).astype("float32")[:, None]
    windows = partial(keras.utils.timeseries_dataset_from_array, series[:-6], series[6:], 6)
    return {
        "x": windows(batch_size=8, shuffle=True, seed=3),
        "validation_data": windows(batch_size=8),
    }


def forecast() -> keras.Model:
    model = keras.Sequential([keras.Input((6, 1)), layers.LSTM(4), layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
    return model


class AsksModel(keras.callbacks.Callback):
    """Predicts and evaluates after each epoch, and adds up the losses of the batches."""

    losses = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses += logs["loss"]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["first"] = float(self.model.predict(X[:8], verbose=0)[0, 0])
        logs["again"] = self.model.evaluate(X[:16], Y[:16], verbose=0)[0]
        logs["added"] = self.losses


def with_validation(**others: Any) -> Callable[[], Mapping[str, Any]]:
    return lambda: {**ARRAYS, "validation_data": (X[:20], Y[:20]), **others}


def stopped() -> Mapping[str, Any]:
    stop = keras.callbacks.EarlyStopping(
        "val_loss", mode="max", patience=1, restore_best_weights=True
    )
    return with_validation(epochs=5, callbacks=[stop])()


CONSTRUCTS = {
    "mask by !=": Construct(
        lambda: small(layers.Dense(4), loss=masked_loss),
        lambda: {**ARRAYS, "y": np.where(Y < 0, -1.0, Y)},
    ),
    "mask by ==": Construct(of(lambda x: x * ops.cast(ops.cast(x > 0, "int32") == 1, "float32"))),
    "own compute_metrics": Construct(own_metrics, with_validation()),
    "a list of losses": Construct(
        two_outputs, lambda: {**ARRAYS, "y": [Y, CLASSES], "validation_split": 0.25}
    ),
    "use_ema": Construct(averaged(), with_validation()),
    "ema_overwrite_frequency": Construct(averaged(ema_overwrite_frequency=3), with_validation()),
    "SwapEMAWeights": Construct(
        averaged(), lambda: with_validation(callbacks=[keras.callbacks.SwapEMAWeights()])()
    ),
    "SwapEMAWeights by epoch": Construct(
        averaged(),
        lambda: with_validation(callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)])(),
    ),
    "gradient accumulation": Construct(
        lambda: small(layers.Dense(4), optimizer=adam(gradient_accumulation_steps=2))
    ),
    "best weights restored": Construct(dense, stopped),
    "a constant of keras.ops": Construct(with_constant),
    "a teacher trained before": Construct(distilled),
    "a StringLookup made before": Construct(looked_up, strings),
    "a model trained before": Construct(trained, with_validation()),
    "tf.scan": Construct(of(lambda x: tf.transpose(tf.scan(tf.add, tf.transpose(x))))),
    "tf.map_fn": Construct(of(lambda x: tf.map_fn(lambda row: row * row, x))),
    "vectorized_map": Construct(
        of(lambda x: tf.vectorized_map(lambda row: row * tf.reduce_sum(row), x))
    ),
    "ops.while_loop": Construct(
        of(lambda x: ops.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 0.9), (0, x))[1])
    ),
    "ops.cond": Construct(of(lambda x: ops.cond(ops.sum(x) > 0, lambda: x, lambda: -x))),
    "sparse gradients": Construct(
        lambda: small(
            layers.Embedding(30, 6),
            layers.GlobalAveragePooling1D(),
            dtype="int32",
            optimizer=keras.optimizers.Adagrad(0.1),
        ),
        lambda: {**ARRAYS, "x": WORDS},
    ),
    "attention": Construct(attention, lambda: {**ARRAYS, "x": WORDS}),
    "masked GRU": Construct(
        lambda: small(
            layers.Embedding(30, 6, mask_zero=True),
            layers.Bidirectional(layers.GRU(5, recurrent_dropout=0.2)),
            dtype="int32",
        ),
        lambda: {**ARRAYS, "x": WORDS},
    ),
    "batch norm, dropout, adapted": Construct(adapted, with_validation()),
    "spectral norm": Construct(lambda: small(layers.SpectralNormalization(layers.Dense(8)))),
    "augmentation": Construct(
        lambda: small(
            layers.Reshape((5, 2, 1)),
            layers.RandomZoom(0.2, seed=1),
            layers.RandomTranslation(0.1, 0.1, seed=2),
            layers.GaussianNoise(0.1, seed=3),
            layers.Flatten(),
        ),
        with_validation(),
    ),
    "schedule, clipping": Construct(
        lambda: small(
            layers.Dense(8, "relu"),
            optimizer=keras.optimizers.AdamW(
                keras.optimizers.schedules.CosineDecay(1e-2, 20), global_clipnorm=0.1
            ),
        )
    ),
    "numpy_function": Construct(
        of(lambda x: tf.ensure_shape(tf.numpy_function(doubled, [x], tf.float32), [None, 10]))
    ),
    "AUC, class weights": Construct(
        classes, lambda: {**ARRAYS, "y": CLASSES, "class_weight": {0: 1.0, 1: 2.5}}
    ),
    "sample weights": Construct(
        classes,
        lambda: {**ARRAYS, "y": CLASSES, "sample_weight": np.linspace(0, 1, len(X))},
    ),
    "fft, cholesky": Construct(
        of(
            lambda x: tf.linalg.matvec(
                tf.linalg.cholesky(tf.eye(10) * 2),
                tf.abs(tf.signal.fft(tf.cast(x, tf.complex64))),
            )
        )
    ),
    "states reset by a callback": Construct(stateful, series),
    "LearningRateScheduler": Construct(
        dense,
        lambda: with_validation(
            callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (epoch + 1))]
        )(),
    ),
    "rates in the logs": Construct(
        dense, lambda: with_validation(callbacks=[ChangesLogs()], epochs=3)()
    ),
    "logs changed by a callback": Construct(dense, overwritten),
    "a metric that is not reset": Construct(
        lambda: small(metrics=[Counts()]), with_validation(epochs=3)
    ),
    "layers made where one is built": Construct(unbuilt, with_validation()),
    "random numbers without a seed": Construct(
        of(lambda x: x + 0.1 * keras.random.normal(ops.shape(x))), with_validation()
    ),
    **(
        {"ScheduleFreeAdamW": Construct(schedule_free, with_validation())}
        if hasattr(keras.optimizers, "ScheduleFreeAdamW")
        else {}
    ),
    "a step that returns metrics by name": Construct(own_step, with_validation()),
    "stopped within an epoch": Construct(
        dense, lambda: with_validation(callbacks=[StopsWithin()], epochs=3)()
    ),
    "an output without a loss": Construct(
        headless,
        lambda: {**ARRAYS, "y": {name: np.tile(Y, 200) for name in ("left", "right")}},
    ),
    "validation_freq": Construct(dense, with_validation(epochs=4, validation_freq=2)),
    "validation_freq, a list": Construct(dense, with_validation(epochs=4, validation_freq=[1, 3])),
    "validation_steps": Construct(
        dense, with_validation(validation_data=(X, Y), validation_steps=2)
    ),
    "validation_batch_size": Construct(dense, with_validation(validation_batch_size=5)),
    "validation_data before validation_split": Construct(
        dense, with_validation(validation_split=0.5)
    ),
    "initial_epoch": Construct(dense, with_validation(epochs=5, initial_epoch=3)),
    "steps_per_epoch": Construct(dense, lambda: {**ARRAYS, "steps_per_epoch": 3, "epochs": 4}),
    "more steps_per_epoch than batches": Construct(
        dense, lambda: {**ARRAYS, "steps_per_epoch": 30}
    ),
    "a dictionary of arrays": Construct(
        lambda: _of_dictionary(), lambda: {**ARRAYS, "x": {"left": X[:, :4], "right": X[:, 4:]}}
    ),
    "a dataset": Construct(dense, lambda: {"x": dataset(), "validation_data": dataset().take(2)}),
    "a shuffled dataset": Construct(
        dropped,
        lambda: {"x": tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(20, seed=2).batch(8)},
    ),
    "a shuffled dataset of unknown length": Construct(
        dropped, lambda: {"x": dataset().unbatch().shuffle(20, seed=2).batch(8)}
    ),
    "a dataset of unknown length": Construct(
        dropped, lambda: {"x": of_unknown_length(), "validation_data": of_unknown_length()}
    ),
    "unknown length, decayed weights": Construct(
        lambda: dense(optimizer=keras.optimizers.AdamW(0.01)), lambda: {"x": of_unknown_length()}
    ),
    "steps_per_epoch that does not divide": Construct(
        dropped, lambda: {"x": dataset(), "steps_per_epoch": 4, "epochs": 4}
    ),
    "steps_per_epoch of unknown length": Construct(
        dropped, lambda: {"x": of_unknown_length(), "steps_per_epoch": 4, "epochs": 4}
    ),
    "Dataset.from_generator": Construct(dropped, lambda: {"x": generated(), "epochs": 3}),
    "steps_per_epoch of a generator": Construct(
        dropped, lambda: {"x": generated().repeat(), "steps_per_epoch": 4, "epochs": 3}
    ),
    "a PyDataset": Construct(
        dense, lambda: {"x": Numbered(), "shuffle": False, "validation_data": Numbered()}
    ),
    "a PyDataset that changes": Construct(
        dense, lambda: {"x": Numbered(), "shuffle": False, "validation_data": Changing()}
    ),
    "a generator": Construct(dense, lambda: {"x": batches(), "epochs": 1}),
    "a generator by steps": Construct(dense, lambda: {"x": batches(), "steps_per_epoch": 3}),
    "py_function in a map": Construct(dense, mapped(python_function)),
    "a layer with a seed in a map": Construct(dense, noise),
    "a StringLookup in a map": Construct(classes, words_in_map),
    "nested dictionaries, some without a loss": Construct(nested, nested_arrays),
    "a layer with a loss, a metric and seeds": Construct(
        lambda: small(layers.Dense(4), Watched()), with_validation()
    ),
    "low rank": Construct(lambda: low_rank(quantized=False)),
    "low rank beside int8": Construct(lambda: low_rank(quantized=True)),
    "FeatureSpace in the model": Construct(
        lambda: of_features(encoded=False), lambda: {"x": rows(), "validation_data": rows()}
    ),
    "FeatureSpace in a map": Construct(lambda: of_features(encoded=True), encoded_rows),
    "categories": Construct(categories, of_categories),
    "a timeseries": Construct(forecast, windows),
    "predict and evaluate in a callback": Construct(
        dense, lambda: with_validation(callbacks=[AsksModel()])()
    ),
    "ReduceLROnPlateau": Construct(
        dense,
        lambda: with_validation(
            epochs=4,
            callbacks=[keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=10)],
        )(),
    ),
    "steps_per_execution": Construct(lambda: dense(steps_per_execution=3), with_validation()),
    "run_eagerly": Construct(lambda: dense(run_eagerly=True), with_validation()),
    "loss_scale_factor": Construct(lambda: dense(optimizer=adam(loss_scale_factor=8.0))),
    "constraints, regularizers": Construct(
        lambda: small(
            layers.Dense(
                4,
                kernel_constraint=keras.constraints.MaxNorm(0.5),
                kernel_regularizer=keras.regularizers.L2(0.1),
                activity_regularizer="l1",
            )
        ),
        with_validation(),
    ),
    "sparse features": Construct(
        lambda: sparse_model(),
        lambda: {"x": dataset().map(lambda x, y: (tf.sparse.from_dense(x), y))},
    ),
    "a sparse tensor": Construct(
        lambda: sparse_model(), lambda: {**ARRAYS, "x": tf.sparse.from_dense(X), "epochs": 3}
    ),
    "a ragged tensor": Construct(
        ragged_model,
        lambda: {**ARRAYS, "x": tf.RaggedTensor.from_tensor(WORDS, lengths=WORDS[:, 0] % 7 + 1)},
    ),
    "workers of a PyDataset": Construct(
        dense, lambda: {"x": Numbered(workers=2), "shuffle": False}
    ),
    "double precision": Construct(double, with_validation()),
    "mixed precision": Construct(
        lambda: small(layers.Dense(4, dtype="mixed_float16"), optimizer=adam()), with_validation()
    ),
}


def sparse_model() -> keras.Model:
    inputs = keras.Input((10,), sparse=True)
    model = keras.Model(inputs, layers.Dense(1)(inputs))
    model.compile("adam", "mse", jit_compile=False)
    return model


def _of_dictionary() -> keras.Model:
    left, right = keras.Input((4,), name="left"), keras.Input((6,), name="right")
    hidden = layers.Dense(4, "tanh")(layers.Concatenate()([left, right]))
    model = keras.Model({"left": left, "right": right}, layers.Dense(1)(hidden))
    model.compile("adam", "mse", jit_compile=False)
    return model
