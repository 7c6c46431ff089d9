from collections.abc import Callable
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from experiments.models import DigitClassifier, SequenceClassifier

WEIGHTS = {
    "cnn/conv1/kernel": (3, 3, 1, 16),
    "cnn/norm1/gamma": (16,),
    "cnn/norm1/beta": (16,),
    "cnn/norm1/moving_mean": (16,),
    "cnn/norm1/moving_variance": (16,),
    "cnn/conv2/kernel": (3, 3, 16, 32),
    "cnn/norm2/gamma": (32,),
    "cnn/norm2/beta": (32,),
    "cnn/norm2/moving_mean": (32,),
    "cnn/norm2/moving_variance": (32,),
    "cnn/embedding/kernel": (512, 32),
    "cnn/embedding/bias": (32,),
}
LSTM = {
    "lstm/lstm_cell/kernel": (32, 512),
    "lstm/lstm_cell/recurrent_kernel": (128, 512),
    "lstm/lstm_cell/bias": (512,),
}


def call(model: keras.Model, features: np.ndarray, *, training: bool) -> tf.Tensor:
    """Calls the model in the current graph as the runner does."""
    function = tf.function(lambda images: model(images, training=training), autograph=False)
    return function(tf.constant(features, tf.float32))


def weights(model: keras.Model) -> dict[str, tuple[int, ...]]:
    root = f"{model.name}/"
    return {
        variable.path.removeprefix(root): tuple(variable.shape)
        for variable in model.variables
        if "seed_generator" not in variable.path
    }


IMAGES, SEQUENCES = np.zeros((2, 8, 8, 1)), np.zeros((2, 3, 8, 8, 1))


@pytest.mark.parametrize(
    ("make", "features", "shape", "expected"),
    [
        (DigitClassifier, IMAGES, (2, 7), {"head/kernel": (32, 7)}),
        (DigitClassifier, IMAGES[:1], (1, 7), {"head/kernel": (32, 7)}),
        (SequenceClassifier, SEQUENCES, (2, 3, 7), {"head/kernel": (128, 7), **LSTM}),
        (
            partial(SequenceClassifier, every_step=False),
            SEQUENCES,
            (2, 7),
            {"head/kernel": (128, 7), **LSTM},
        ),
    ],
    ids=["images", "one image", "every step", "whole sequences"],
)
def test_variables_have_the_same_names_however_often_a_model_is_built(
    make: Callable[..., keras.Model],
    features: np.ndarray,
    shape: tuple[int, ...],
    expected: dict[str, tuple[int, ...]],
) -> None:
    """Each kind is built twice in this process. Outputs are logits per class."""
    with tf.Graph().as_default():
        model = make(classes=7)
        assert call(model, features, training=True).shape == shape
        assert weights(model) == {**WEIGHTS, **expected, "head/bias": (7,)}


def test_the_lstm_reads_each_sequence_in_its_own_order() -> None:
    images = np.random.default_rng(0).random((2, 3, 8, 8, 1))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        model = SequenceClassifier(every_step=False)
        variants = [images, images[::-1], images[:, ::-1], images[:, [0, 0, 2]]]
        outputs = call(model, np.concatenate(variants), training=False)
        session.run(tf.compat.v1.global_variables_initializer())
        plain, other_batch_order, reversed_time, changed = np.split(session.run(outputs), 4)
    np.testing.assert_allclose(plain, other_batch_order[::-1], rtol=1e-5)
    assert not np.allclose(plain, reversed_time, rtol=1e-3)
    assert not np.allclose(plain, changed, rtol=1e-3)


@pytest.mark.parametrize("train_cnn", [True, False])
def test_a_cnn_that_does_not_train_has_still_statistics_and_no_dropout(train_cnn: bool) -> None:
    images = np.random.default_rng(0).random((4, 3, 8, 8, 1))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        model = SequenceClassifier(train_cnn=train_cnn, dropout=0.5)
        outputs = call(model, images, training=True)
        statistics = [variable.value for variable in model.variables if "moving_" in variable.path]
        session.run(tf.compat.v1.global_variables_initializer())
        before = session.run(statistics)
        first, second = session.run(outputs), session.run(outputs)
        after = session.run(statistics)
    assert len(statistics) == 4
    assert np.array_equal(first, second) is not train_cnn
    for old, new in zip(before, after, strict=True):
        assert np.array_equal(old, new) is not train_cnn
