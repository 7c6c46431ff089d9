"""Models that Keras has saved, in a session's graph: each variable and the outputs are as saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import runner
from runner.config.choices import Expect
from runner.config.schema import RestorationConfig, ScaffoldConfig, VariablesConfig
from runner.graph.build import build_graph
from runner.internals.tensorflow import eager_mode
from runner.restoration.restorer import Restorer
from runner.tracking import RunStore
from runner.training.run_sources import Sources, plan_run
from tests.support.configs import tiny

# Keras saves variables by way of np.array, of which NumPy 2 warns.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
layers = keras.layers
_SIZES = {"Xception": 71, "InceptionV3": 75, "InceptionResNetV2": 75}


def application(name: str) -> keras.Model:
    size = _SIZES.get(name, 32)
    build = getattr(keras.applications, name)
    return build(weights=None, include_top=False, input_shape=(size, size, 3), pooling="avg")


def tower(name: str) -> keras.Model:
    """A functional model: its name is not in the paths of its variables in Keras."""
    given = keras.Input((4,))
    hidden = layers.BatchNormalization(scale=False)(layers.Dense(3, name="in")(given))
    return keras.Model(given, hidden, name=name)


def nested() -> keras.Model:
    given = keras.Input((4,))
    inner = keras.Sequential([layers.Dense(3), layers.Dense(3)], name="inner")
    return keras.Model(given, layers.Add()([inner(given), tower("a")(given), tower("b")(given)]))


class Scale(keras.layers.Layer):
    """A layer of one's own; Keras counts up the names of its variables in all of the process."""

    def build(self, shape: Any) -> None:
        self.one = self.add_weight(shape=(shape[-1],))
        self.two = self.add_weight(shape=(shape[-1],))

    def call(self, inputs: Any) -> Any:
        return inputs * self.one + self.two


class Subclassed(keras.Model):
    """Layers in attributes, lists and dictionaries, and a weight of the model itself."""

    def __init__(self) -> None:
        super().__init__(name="subclassed")
        self.norm = layers.BatchNormalization(center=False)
        self.blocks = [Scale(), Scale()]
        self.heads = {"one": layers.GRU(3), "two": layers.LayerNormalization()}
        self.attention = layers.MultiHeadAttention(2, 3)
        self.shift = self.add_weight(shape=(4,))

    def call(self, inputs: Any) -> Any:
        hidden = self.norm(inputs) + self.shift
        for block in self.blocks:
            hidden = block(hidden)
        hidden = self.attention(hidden[:, None], hidden[:, None])
        return self.heads["one"](self.heads["two"](hidden))


def subclassed() -> keras.Model:
    model = Subclassed()
    model(tf.zeros((1, 4)))
    return model


def preprocessing() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Normalization(),
            layers.GaussianNoise(0.1),
            layers.Reshape((2, 2)),
            layers.Bidirectional(layers.LSTM(2)),
            layers.Dropout(0.5),
            layers.Dense(2),
        ]
    )


MODELS: dict[str, Callable[[], keras.Model]] = {
    each.__name__: each for each in (nested, subclassed, preprocessing)
}
ZOO = (
    *("ConvNeXtTiny", "DenseNet121", "EfficientNetB0", "EfficientNetV2B0", "InceptionResNetV2"),
    *("InceptionV3", "MobileNet", "MobileNetV2", "MobileNetV3Small", "NASNetMobile", "ResNet50"),
    *("ResNet50V2", "VGG16", "Xception"),
)
BUILT: list[keras.Model] = []


def build(name: str) -> keras.Model:
    """The model of a run; the test finds it in `BUILT`."""
    BUILT[:] = [MODELS[name]() if name in MODELS else application(name)]
    return BUILT[0]


def pretrained(name: str) -> keras.Model:
    """Returns a model none of whose variables has its initial value.

    Kernels change by a factor: with a term, the outputs of a hundred layers are not finite.
    """
    model = build(name)
    generator = np.random.default_rng(0)
    for variable in model.variables:
        if "float" in variable.dtype:
            change = generator.uniform(0.01, 0.05, variable.shape)
            is_kernel = len(variable.shape) > 1
            variable.assign(variable * (1 + change) if is_kernel else variable + change)
    for layer in model.layers:
        if isinstance(layer, layers.Normalization):
            layer.finalize_state()
    return model


class Zeros:
    """Data of the model's shape."""

    def __init__(self, shape: list[int]) -> None:
        self._shape = shape

    def _batches(self) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors((tf.zeros((2, *self._shape)), tf.zeros((2, 1))))

    train = validation = test = _batches


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        *(("nested", "keras"), ("subclassed", "weights.h5"), ("preprocessing", "weights.h5")),
        *(pytest.param(each, "weights.h5", marks=pytest.mark.soak) for each in ZOO),
    ],
)
def test_a_saved_model_in_a_graph(name: str, suffix: str, tmp_path: Path) -> None:
    keras.utils.clear_session()
    saved = pretrained(name)
    path = tmp_path / f"model.{suffix}"
    (saved.save if suffix == "keras" else saved.save_weights)(path)
    shape = list(getattr(saved, "input_shape", (None, 4))[1:])
    inputs = np.random.default_rng(1).normal(size=(2, *shape)).astype("float32")
    values, outputs = [each.numpy() for each in saved.variables], saved(inputs).numpy()
    assert np.isfinite(outputs).all()
    config = tiny(
        data={"_target_": f"{__name__}.Zeros", "shape": shape},
        model={"_target_": f"{__name__}.build", "name": name},
        loss={"_target_": "keras.losses.mean_absolute_error", "_partial_": True},
        metrics={},
        scaffolds={"all": ScaffoldConfig(VariablesConfig(["*"]), str(path))},
        restoration=RestorationConfig(expect={"all": Expect.all}),
    )
    built = build_graph(config, "validation", train=False)
    sources = Sources(config, RunStore())
    plan = plan_run(config, built, sources)
    plan.require_sound()
    model = BUILT[0]
    with built.graph.as_default(), tf.compat.v1.Session() as session:
        restorer = Restorer(plan, built.variables, sources.open)
        restorer.warm_start(session, None, None, init_fn=None)
        assert built.model is not None
        evaluated = built.evaluation.evaluate(session)
        with eager_mode():
            built.model.pull(session, weights=True)
    for variable, one, other in zip(saved.variables, model.variables, values, strict=True):
        if "seed_generator" not in variable.path:
            np.testing.assert_array_equal(one, other, err_msg=variable.path)
    scale = np.abs(outputs).max()
    np.testing.assert_allclose(model(inputs) / scale, outputs / scale, atol=1e-5)
    saved.compile(loss="mean_absolute_error")
    data = Zeros(shape).validation()
    assert evaluated["loss"] == pytest.approx(saved.evaluate(data, verbose=0), rel=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_second_build_in_a_process(name: str, tmp_path: Path) -> None:
    """Keras counts names up, so that those of the first build are in the file."""
    saved = pretrained(name)
    saved.save_weights(tmp_path / "model.weights.h5")
    model = build(name)
    everything = {
        "variables": {"include": ["*"]},
        "checkpoint": str(tmp_path / "model.weights.h5"),
    }
    runner.warm_start(model, {"all": everything})
    for one, other in zip(model.variables, saved.variables, strict=True):
        if "seed_generator" not in one.path:
            np.testing.assert_array_equal(one, other, err_msg=one.path)
    inputs = np.ones((2, 4), "float32")
    np.testing.assert_allclose(model(inputs), saved(inputs), atol=1e-6)
