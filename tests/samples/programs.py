"""Programs in the style of TensorFlow 1, as they were written for `tf.estimator`."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import runner
from runner import estimator


def digits(split: str, batch_size: int = 32) -> tf.data.Dataset:
    """An `input_fn` that returns a dataset of images by name."""
    from experiments.digits import load_splits

    part = getattr(load_splits(), split)
    batches = tf.data.Dataset.from_tensor_slices(({"image": part.images}, part.digits))
    if split == "train":
        batches = batches.shuffle(len(part.digits), seed=1).repeat()
    return batches.batch(batch_size)


def cnn_of_layers(features: Any, labels: Any, mode: str, params: Any) -> estimator.EstimatorSpec:
    """A CNN of `tf_keras.layers` and `tf.layers`, with batch norm and dropout."""
    import tf_keras

    training = mode == estimator.ModeKeys.TRAIN
    hidden = tf_keras.layers.Conv2D(8, 3, 2, "same", name="conv")(features["image"])
    hidden = tf.nn.relu(tf.layers.batch_normalization(hidden, training=training, momentum=0.9))
    hidden = tf.layers.dropout(tf.layers.flatten(hidden), 0.1, training=training)
    logits = tf.layers.dense(hidden, 10, name="head")
    optimizer = tf.train.AdamOptimizer(params["learning_rate"])
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        return classified(logits, labels, mode, optimizer)


def classified(
    logits: tf.Tensor, labels: Any, mode: str, optimizer: tf.train.Optimizer
) -> estimator.EstimatorSpec:
    """The end of a `model_fn` that classifies."""
    predictions = {"class": tf.argmax(logits, 1), "probabilities": tf.nn.softmax(logits)}
    if mode == estimator.ModeKeys.PREDICT:
        return estimator.EstimatorSpec(mode, predictions)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    accuracy = tf.metrics.accuracy(labels, predictions["class"])
    if mode == estimator.ModeKeys.EVAL:
        return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
    tf.summary.scalar("train_accuracy", accuracy[1])
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    gradients, _ = tf.clip_by_global_norm(gradients, 5.0)
    train_op = optimizer.apply_gradients(
        zip(gradients, variables, strict=True), tf.train.get_global_step()
    )
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def counting(seed: int = 0, count: int = 64, repeat: bool = True) -> tf.data.Dataset:
    """Sequences of 4 digits up to 3, labelled with the first of them."""
    values = np.random.default_rng(seed).integers(0, 4, (count, 4)).astype(np.int32)
    batches = tf.data.Dataset.from_tensor_slices((values, values[:, 0]))
    return (batches.shuffle(count, seed=1).repeat() if repeat else batches).batch(16)


def pairs(**arguments: Any) -> tf.data.Dataset:
    """Like `counting`, with features that are a tuple."""
    return counting(**arguments).map(lambda values, label: ((values, values), label))


def lstm(features: Any, labels: Any, mode: str, params: Any) -> estimator.EstimatorSpec:
    """An LSTM cell written out, in variable scopes, unrolled; in `parts` partitions, if given."""
    units = params["units"]
    partitioner = tf.fixed_size_partitioner(params["parts"]) if "parts" in params else None
    initializer = tf.glorot_uniform_initializer()
    with tf.variable_scope("encoder", initializer=initializer, partitioner=partitioner):
        inputs = tf.one_hot(features, 4)
        state = output = tf.zeros([tf.shape(inputs)[0], units])
        for step in range(4):
            with tf.variable_scope("lstm_cell", reuse=step > 0):
                kernel = tf.get_variable("kernel", [4 + units, 4 * units])
                bias = tf.get_variable("bias", [4 * units], initializer=tf.zeros_initializer())
                gates = tf.matmul(tf.concat([inputs[:, step], output], 1), kernel) + bias
                i, j, f, o = tf.split(gates, 4, 1)
                state = state * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
                output = tf.tanh(state) * tf.sigmoid(o)
    with tf.variable_scope("softmax"):
        logits = tf.matmul(output, tf.get_variable("w", [units, 4]))
    return classified(logits, labels, mode, tf.train.AdamOptimizer(params["learning_rate"]))


def dense(inputs: tf.Tensor, units: int, name: str) -> tf.Tensor:
    """`tf.layers.dense`, which is gone, in its names, of a matrix."""
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [inputs.shape[-1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return tf.nn.xw_plus_b(inputs, kernel, bias)


def layer_norm(inputs: tf.Tensor) -> tf.Tensor:
    """Layer normalisation in BERT's names."""
    with tf.variable_scope("LayerNorm"):
        size = inputs.shape[-1]
        gamma = tf.get_variable("gamma", [size], initializer=tf.ones_initializer())
        beta = tf.get_variable("beta", [size], initializer=tf.zeros_initializer())
    mean, variance = tf.nn.moments(inputs, [-1], keepdims=True)
    return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, 1e-6)


def bert_encoder(tokens: tf.Tensor, layers: int = 1, size: int = 8, heads: int = 2) -> tf.Tensor:
    """A transformer encoder in the variable names of BERT."""
    with tf.variable_scope("bert"):
        with tf.variable_scope("embeddings"):
            words = tf.get_variable("word_embeddings", [4, size])
            places = tf.get_variable("position_embeddings", [4, size])
            hidden = tf.reshape(tf.gather(words, tokens) + places, [-1, size])
            hidden = layer_norm(hidden)
        with tf.variable_scope("encoder"):
            for layer in range(layers):
                with tf.variable_scope(f"layer_{layer}"):
                    hidden = _bert_layer(hidden, size, heads)
        with tf.variable_scope("pooler"):
            return tf.tanh(dense(tf.reshape(hidden, [-1, 4, size])[:, 0], size, "dense"))


def _bert_layer(hidden: tf.Tensor, size: int, heads: int) -> tf.Tensor:
    with tf.variable_scope("attention"):
        with tf.variable_scope("self"):
            parts = []
            for name in ("query", "key", "value"):
                part = tf.reshape(dense(hidden, size, name), [-1, 4, heads, size // heads])
                parts.append(tf.transpose(part, [0, 2, 1, 3]))
            query, key, value = parts
            scores = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / (size / heads) ** 0.5)
            context = tf.transpose(tf.matmul(scores, value), [0, 2, 1, 3])
        with tf.variable_scope("output"):
            context = tf.reshape(context, [-1, size])
            hidden = layer_norm(dense(context, size, "dense") + hidden)
    with tf.variable_scope("intermediate"):
        middle = tf.nn.elu(dense(hidden, 2 * size, "dense"))
    with tf.variable_scope("output"):
        return layer_norm(dense(middle, size, "dense") + hidden)


def bert_model_fn_builder(init_checkpoint: str | None, learning_rate: float = 0.01) -> Any:
    """Returns a `model_fn` that is fine-tuned from a checkpoint by an assignment map."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> estimator.EstimatorSpec:
        del params
        pooled = bert_encoder(features)
        with tf.variable_scope("classifier"):
            logits = dense(pooled, 4, "dense")
        if init_checkpoint:
            names = [name for name, _ in tf.train.list_variables(init_checkpoint)]
            known = {variable.op.name for variable in tf.trainable_variables()}
            assignment = {name: name for name in names if name in known}
            tf.train.init_from_checkpoint(init_checkpoint, assignment)
        optimizer = tf.train.AdamOptimizer(learning_rate)
        return classified(logits, labels, mode, optimizer)

    return model_fn


def counting_input_fn_builder(**arguments: Any) -> Any:
    """Returns an `input_fn`, as BERT's programs do."""

    def input_fn(params: Any) -> tf.data.Dataset:
        del params
        return counting(**arguments)

    return input_fn


PLAYERS = ("discriminator", "generator")


def gan(mode: str, size: int = 8, seed: int = 0, calls: bool = False) -> runner.GraphSpec:
    """A generator and a discriminator of points on a line, with an optimizer each.

    Args:
      mode: `train`, `validation`, `test` or `export`.
      size: of the hidden layers.
      seed: of the data.
      calls: whether the step is a function that runs the two updates in turn.
    """

    def points(noise: tf.Tensor) -> tf.Tensor:
        with tf.variable_scope("generator", reuse=tf.AUTO_REUSE):
            return dense(tf.nn.relu(dense(noise, size, "hidden")), 1, "out")

    def judged(values: tf.Tensor) -> tf.Tensor:
        with tf.variable_scope("discriminator", reuse=tf.AUTO_REUSE):
            return dense(tf.nn.relu(dense(values, size, "hidden")), 1, "out")

    def mean_loss(logits: tf.Tensor, real: float) -> tf.Tensor:
        labels = tf.fill(tf.shape(logits), real)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))

    data = tf.data.Dataset.random(seed=seed).map(
        lambda number: (
            tf.random.stateless_normal([32, 1], [number, 0], 3.0, 0.5),
            tf.random.stateless_normal([32, 4], [number, 1]),
        )
    )
    source = runner.TrainingInput(data if mode == "train" else data.take(4), prefetch=True)
    (real, noise), _ = source.next()
    if mode == "export":
        noise = tf.placeholder(tf.float32, [None, 4])
    fake = points(noise)
    distance = tf.abs(tf.reduce_mean(fake) - 3.0)
    if mode == "export":
        signature = tf.saved_model.predict_signature_def({"noise": noise}, {"point": fake})
        return runner.GraphSpec(signatures={"serving_default": signature})
    if mode != "train":
        return runner.GraphSpec(evaluation={"distance": tf.metrics.mean(distance)}, input=source)
    told = (mean_loss(judged(real), 1.0) + mean_loss(judged(fake), 0.0)) / 2
    fooled = mean_loss(judged(fake), 1.0)
    optimizers = {name: tf.train.AdamOptimizer(0.02, 0.5, name=f"{name}_adam") for name in PLAYERS}
    gradients = {
        name: optimizers[name].compute_gradients(loss, tf.trainable_variables(name))
        for name, loss in zip(PLAYERS, (told, fooled), strict=True)
    }
    # In one step both updates follow from what was before it.
    before = [] if calls else [gradient for pairs in gradients.values() for gradient, _ in pairs]
    with tf.control_dependencies(before):
        train = {name: optimizers[name].apply_gradients(gradients[name]) for name in PLAYERS}
    increment = tf.assign_add(tf.train.get_global_step(), 1)
    if not calls:
        train_op = tf.group(*train.values(), increment)
        return runner.GraphSpec(
            fooled, train_op, {"told": told, "distance": distance}, input=source
        )
    last = tf.get_local_variable("last_loss", initializer=0.0)
    keep = tf.assign(last, fooled)

    def step(session: tf.Session) -> None:
        session.run(train["discriminator"])
        session.run([train["generator"], keep])
        session.run(increment)

    return runner.GraphSpec(last.read_value(), step, input=source)


class Counting(tf.train.SessionRunHook):
    """Adds an operation and a variable, and appends to a file how many batches it saw."""

    def __init__(self, path: str) -> None:
        self.path = path

    def begin(self) -> None:
        self.batches = tf.assign_add(tf.get_local_variable("batches", initializer=0), 1)
        self.seen = 0

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs(self.batches)

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        self.seen += 1
        assert run_values.results == self.seen

    def end(self, session: tf.Session) -> None:
        with open(self.path, "a") as file:
            print(self.seen, file=file)


def hooked(features: Any, labels: Any, mode: str, params: Any) -> estimator.EstimatorSpec:
    """One weight that an `init_fn` sets, with hooks that log, profile and count."""
    weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
    predictions = {"scaled": weight * tf.cast(features, tf.float32)}
    if mode == estimator.ModeKeys.PREDICT:
        return estimator.EstimatorSpec(mode, predictions)
    loss = weight * tf.reduce_mean(tf.cast(labels, tf.float32))
    step = tf.train.get_global_step()
    start = tf.assign(weight, params["start"])
    folder = params["folder"]
    return estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=tf.train.GradientDescentOptimizer(1.0).minimize(loss, step),
        eval_metric_ops={"weight": tf.metrics.mean(weight)},
        scaffold=tf.train.Scaffold(init_fn=lambda scaffold, session: session.run(start)),
        training_hooks=[
            tf.train.LoggingTensorHook({"seven": tf.constant(7)}, every_n_iter=2, at_end=True),
            tf.train.ProfilerHook(save_steps=2, output_dir=folder),
        ],
        evaluation_hooks=[Counting(f"{folder}/batches")],
    )


def constant(labels: tf.Tensor) -> tf.Tensor:
    """A loss with one weight."""
    return tf.reduce_mean(tf.get_variable("w", []) * tf.cast(labels, tf.float32))


def no_spec(features: Any, labels: Any, mode: str) -> Any:
    return constant(labels)


def of_another_mode(features: Any, labels: Any, mode: str) -> Any:
    return estimator.EstimatorSpec(estimator.ModeKeys.PREDICT, constant(labels))


def misspelt_mode(features: Any, labels: Any, mode: str) -> Any:
    return estimator.EstimatorSpec("evaluate", constant(labels))


def no_train_op(features: Any, labels: Any, mode: str) -> Any:
    return estimator.EstimatorSpec(mode, loss=constant(labels))


def no_increment(features: Any, labels: Any, mode: str) -> Any:
    loss = constant(labels)
    # The step is read, by a schedule, and not written.
    rate = tf.train.exponential_decay(0.1, tf.train.get_global_step(), 10, 0.5)
    train_op = tf.train.GradientDescentOptimizer(rate).minimize(loss)
    return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def metric_named_loss(features: Any, labels: Any, mode: str) -> Any:
    loss = constant(labels)
    metrics = {"loss": tf.metrics.mean(loss)}
    return estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)


def without_labels(features: Any, mode: str) -> Any:
    return no_train_op(features, features, mode)


def wrong_graph(mode: str, kind: str) -> Any:
    """A graph whose return is wrong in one way, in mode `train` where it can be."""
    loss = constant(tf.constant([1]))
    step = tf.train.get_global_step()
    spec = runner.GraphSpec(loss, tf.assign_add(step, 1))
    if kind == "no spec":
        return loss
    if mode != "train":
        return spec  # Nothing ends this evaluation: it takes place once.
    changes: dict[str, Any] = {
        "no loss": {"loss": None},
        "no train_op": {"train_op": None},
        "no increment": {"train_op": tf.assign_add(tf.get_local_variable("n", initializer=0), 1)},
        "list": {"train_op": [spec.train_op]},
        "dataset": {"input": counting()},
        "no update": {"evaluation": {"kept": loss}},
        "pair": {"metrics": {"kept": (loss, loss)}},
        "vector": {"loss": tf.stack([loss, loss])},
        "function": {"train_op": lambda session: session.run(loss)},
    }
    return dataclasses.replace(spec, **changes[kind])
