"""Layers with counted names are identified by their places, and slots by the file's variables."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import runner
from runner.checkpoints.formats.keras_names import layers_in_order
from runner.errors import PlanError, Problem

# Keras saves variables by way of np.array, of which NumPy 2 warns.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5"),
    pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize`"),
]
SLOTS = ["weights", "batch_norm", "optimizer_slots", "moving_averages"]
FORMATS: dict[str, Callable[[keras.Model, Path], Any]] = {
    "m.keras": lambda model, path: model.save(path),
    "m.weights.h5": lambda model, path: model.save_weights(path),
    "m.h5": lambda model, path: model.save(path),
    "objects": lambda model, path: tf.train.Checkpoint(model=model).write(str(path)),
}
every_format = pytest.mark.parametrize("form", FORMATS)


def dense(count: int, *names: str | None) -> list[keras.layers.Dense]:
    return [keras.layers.Dense(2, **({"name": name} if name else {})) for name in names * count]


def chain(layers: Sequence[keras.layers.Layer]) -> keras.Model:
    """A functional model of layers in this order."""
    first = value = keras.Input((2,))
    for layer in layers:
        value = layer(value)
    return keras.Model(first, value)


def number(layers: Sequence[keras.layers.Layer]) -> None:
    """Gives the layers the values 1, 2, ..."""
    for at, layer in enumerate(layers):
        for variable in layer.weights:
            variable.assign(np.full(variable.shape, at + 1))


def numbers(layers: Sequence[keras.layers.Layer]) -> list[float]:
    return [float(layer.kernel[0, 0]) for layer in layers]


def start(model: keras.Model, path: object, include: str = "*", **keys: Any) -> Any:
    scaffold = {"variables": {"include": [include]}, "checkpoint": str(path), **keys}
    return runner.warm_start(model, {"net": scaffold})


def refused(model: keras.Model, path: object, include: str = "*", **keys: Any) -> Problem:
    with pytest.raises(PlanError) as caught:
        start(model, path, include, **keys)
    return caught.value.problems[0]


@every_format
def test_layers_made_in_another_order_keep_their_places(form: str, tmp_path: Path) -> None:
    layers = dense(3, None)
    source = chain(layers)
    number(layers)
    FORMATS[form](source, tmp_path / form)
    keras.utils.clear_session()
    made = dense(3, None)
    used = [made[2], made[0], made[1]]
    model = chain(used)
    assert [layer.name for layer in used] == ["dense_2", "dense", "dense_1"]
    start(model, tmp_path / form)
    assert numbers(used) == [1, 2, 3]
    if form != "objects":
        model.load_weights(tmp_path / form)
        assert numbers(used) == [1, 2, 3], "as Keras's own"


@every_format
def test_layers_with_given_names_keep_them_in_any_place(form: str, tmp_path: Path) -> None:
    layers = dense(1, "a", "b", "c")
    number(layers)
    source = chain(layers)
    number(layers)
    FORMATS[form](source, tmp_path / form)
    again = dense(1, "c", "a", "b")
    start(chain(again), tmp_path / form)
    assert numbers(again) == [3, 1, 2]


@every_format
def test_counted_layers_of_another_number_are_not_guessed(form: str, tmp_path: Path) -> None:
    layers = dense(2, None)
    source = chain(layers)
    number(layers)
    FORMATS[form](source, tmp_path / form)
    keras.utils.clear_session()
    more = dense(3, None)
    model = chain(more)
    before = numbers(more)
    problem = refused(model, tmp_path / form)
    assert "cannot tell which tensors are dense/kernel" in problem.state
    assert "layers with names that Keras counts are identified by their places" in problem.cause
    start(model, tmp_path / form, missing="init")
    assert numbers(more) == before


def test_a_rule_names_what_the_places_leave_open(tmp_path: Path) -> None:
    keras.utils.clear_session()
    layers = dense(2, None)
    source = chain(layers)
    number(layers)
    source.save(tmp_path / "m.keras")
    keras.utils.clear_session()
    more = dense(3, None)
    model = chain(more)
    rules = {f"dense_2/{leaf}": f"layers/dense_1/vars/{at}" for at, leaf in enumerate(LEAVES)}
    start(model, tmp_path / "m.keras", "dense_2/*", rename=rules)
    # A name in the file is the file's, whatever this model calls its layers.
    start(model, tmp_path / "m.keras", "dense/*", rename={"dense/": "dense_1/"})
    assert numbers(more)[0] == numbers(more)[2] == 2


LEAVES = ("kernel", "bias")


@pytest.mark.parametrize("made_before", [0, 1])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    ("form", "is_whole"),
    [
        *(("m.keras", is_whole) for is_whole in (True, False)),
        *(("m.weights.h5", is_whole) for is_whole in (True, False)),
        ("m.h5", True),
    ],
)
def test_a_part_with_counted_layers_is_found_by_its_new_name(
    form: str, is_whole: bool, order: tuple[int, ...], made_before: int, tmp_path: Path
) -> None:
    def nested(name: str, order: tuple[int, ...]) -> tuple[keras.Model, list[keras.layers.Dense]]:
        made = dense(2, None)
        used = [made[at] for at in order]
        return keras.Sequential(used, name=name), used

    keras.utils.clear_session()
    part, layers = nested("encoder", (0, 1))
    source = keras.Sequential([keras.Input((2,)), part, keras.layers.Dense(2, name="top")])
    number(layers)
    FORMATS[form](source if is_whole else part, tmp_path / form)
    keras.utils.clear_session()
    dense(made_before, None)
    part, again = nested("cnn", order)
    model = keras.Sequential([keras.Input((2,)), part, keras.layers.Dense(2, name="head")])
    rename = {"cnn/": "encoder/" if is_whole else ""}
    start(model, tmp_path / form, "cnn/*", rename=rename)
    assert numbers(again) == [1, 2]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("has_config", [True, False])
def test_frozen_layers_of_a_model_in_a_model_are_listed_last(
    order: tuple[int, ...], has_config: bool, tmp_path: Path
) -> None:
    def nested(order: tuple[int, ...]) -> tuple[keras.Model, list[keras.layers.Dense]]:
        keras.utils.clear_session()
        made = dense(2, None)
        used = [made[at] for at in order]
        return chain([chain(used)]), used

    source, layers = nested((0, 1))
    number(layers)
    layers[0].trainable = False
    source.save(tmp_path / "whole.h5")
    with h5py.File(tmp_path / "whole.h5") as whole, h5py.File(tmp_path / "m.h5", "w") as file:
        weights = whole["model_weights"]
        (group,) = (weights[name] for name in weights if len(weights[name].attrs["weight_names"]))
        assert next(iter(group.attrs["weight_names"])) == "dense_1/kernel"
        for name in weights:
            weights.copy(name, file)
        file.attrs.update(weights.attrs)
        if has_config:
            file.attrs["model_config"] = whole.attrs["model_config"]
    model, again = nested(order)
    if has_config:
        start(model, tmp_path / "m.h5")
        assert numbers(again) == [1, 2]
    else:
        assert "cannot tell which tensors" in refused(model, tmp_path / "m.h5").state


class Net(keras.Model):
    """Two layers in attributes, made and called in an order."""

    def __init__(self, order: str) -> None:
        super().__init__(name="net")
        for name in order:
            setattr(self, name, keras.layers.Dense(2))

    def call(self, inputs: Any) -> Any:
        return self.b(self.a(inputs))


def subclassed(order: str) -> Net:
    keras.utils.clear_session()
    model = Net(order)
    model(np.zeros((1, 2), np.float32))
    return model


@pytest.mark.parametrize("form", ["m.weights.h5", "objects"])
def test_an_attribute_is_a_place(form: str, tmp_path: Path) -> None:
    source = subclassed("ab")
    number([source.a, source.b])
    FORMATS[form](source, tmp_path / form)
    model = subclassed("ba")
    assert (model.a.name, source.a.name) == ("dense_1", "dense")
    if form == "objects":
        # The names are all that this format has in a program without attributes of Keras.
        refused(model, tmp_path / form)
        return
    start(model, tmp_path / form)
    assert numbers([model.a, model.b]) == [1, 2]


@pytest.mark.parametrize("names", [("a", "b"), (None, None)])
@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("include", ["*", "*/bias"])
def test_a_quantized_model_is_refused_and_starts_a_quantized_one(
    names: tuple[str | None, ...], use_bias: bool, include: str, tmp_path: Path
) -> None:
    def layers(*, use_bias: bool) -> list[keras.layers.Dense]:
        keras.utils.clear_session()
        options: list[dict[str, Any]] = [{"name": name} if name else {} for name in names]
        return [keras.layers.Dense(2, use_bias=use_bias, **option) for option in options]

    source = chain(layers(use_bias=use_bias))
    source.quantize("int8")
    source.save(tmp_path / "m.keras")
    # Without a bias, the number of the bias is the scale's.
    problem = refused(chain(layers(use_bias=True)), tmp_path / "m.keras", include, cast=True)
    assert "some of its weights are quantized (Keras's `quantize`)" in problem.cause
    model = chain(layers(use_bias=use_bias))
    model.quantize("int8")
    start(model, tmp_path / "m.keras")
    for ours, theirs in zip(model.variables, source.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_averages_of_a_file_are_taken_by_an_optimizer_that_keeps_them(tmp_path: Path) -> None:
    source = branches("ab")
    expected = trained(source, OPTIMIZERS["with averages"]())
    source.save(tmp_path / "m.keras")
    model = branches("ba")
    problem = refused(model, tmp_path / "m.keras", use_ema=True)
    assert "averages are among the numbered variables of its optimizer" in problem.cause
    model.compile(OPTIMIZERS["with averages"](), "mse")
    state = ["weights", "moving_averages"]
    start(model, tmp_path / "m.keras", use_ema=True, state=state)
    for name in "ab":
        np.testing.assert_array_equal(
            model.get_layer(name).kernel, expected[f"{name}_kernel_average"]
        )


# Slots


def trained(model: keras.Model, optimizer: Any) -> dict[str, Any]:
    """Compiles a model, gives each slot its own value, and returns them by variable and slot."""
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for at, state in enumerate(inner.variables[2:]):
        state.assign(np.full(state.shape, at + 1))
    return slots(model)


def slots(model: keras.Model) -> dict[str, Any]:
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return {
        state.path.partition("/")[2].rpartition("adam_1/")[2]: state.numpy()
        for state in inner.variables[2:]
    }


def branches(order: str) -> keras.Model:
    first = keras.Input((2,))
    layers = {name: keras.layers.Dense(2, name=name) for name in "ab"}
    outputs = [layers[name](first) for name in order]
    return keras.Model(first, keras.layers.Dense(1, name="head")(keras.layers.Add()(outputs)))


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "Adam": lambda: keras.optimizers.Adam(name="adam"),
    "AMSGrad": lambda: keras.optimizers.Adam(amsgrad=True, name="adam"),
    "Adafactor": lambda: keras.optimizers.Adafactor(name="adam"),
    "with averages": lambda: keras.optimizers.Adam(use_ema=True, name="adam"),
    "with a loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(name="adam"), name="adam"
    ),
}


@pytest.mark.parametrize("form", ["m.keras", "m.weights.h5"])
@pytest.mark.parametrize("name", ["Adam", "AMSGrad", "with averages", "with a loss scale"])
def test_slots_follow_branches_in_another_order(form: str, name: str, tmp_path: Path) -> None:
    source = branches("ab")
    expected = trained(source, OPTIMIZERS[name]())
    FORMATS[form](source, tmp_path / form)
    model = branches("ba")
    model.compile(OPTIMIZERS[name](), "mse")
    state = SLOTS if "average" in name else SLOTS[:3]
    plan = start(model, tmp_path / form, state=state)
    assert not [
        a.variable.name
        for a in plan.assignments
        if not a.source_tensor and "seed" not in a.variable.name
    ]
    restored = slots(model)
    assert restored.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(restored[key], value, err_msg=key)


def mixed(order: str) -> keras.Model:
    """Two branches of two classes whose variables have the same shapes."""
    first = keras.Input((2,))
    layers = {
        "a": keras.layers.Dense(2, name="a"),
        "b": keras.layers.EinsumDense("ab,bc->ac", 2, bias_axes="c", name="b"),
    }
    return keras.Model(first, keras.layers.Add()([layers[name](first) for name in order]))


def test_a_file_that_does_not_say_whose_slots_are_restores_none(tmp_path: Path) -> None:
    source = mixed("ab")
    expected = trained(source, OPTIMIZERS["Adam"]())
    source.save(tmp_path / "m.keras")
    source.save_weights(tmp_path / "m.weights.h5")
    for order in ("ab", "ba"):
        model = mixed(order)
        model.compile(OPTIMIZERS["Adam"](), "mse")
        problem = refused(model, tmp_path / "m.weights.h5", state=SLOTS[:3])
        assert "it does not say in which order its layers trained" in problem.cause
        assert "runner map" not in problem.remedy
        start(model, tmp_path / "m.keras", state=SLOTS[:3])
        for key, value in slots(model).items():
            np.testing.assert_array_equal(value, expected[key], err_msg=key)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda: keras.optimizers.SGD(momentum=0.9), "its optimizer is 'adam', not SGD"),
        (lambda: keras.optimizers.Adam(amsgrad=True), "it trained other variables"),
    ],
)
def test_another_optimizer_is_said(change: Callable[[], Any], cause: str, tmp_path: Path) -> None:
    source = branches("ab")
    trained(source, OPTIMIZERS["Adam"]())
    source.save(tmp_path / "m.keras")
    model = branches("ab")
    model.compile(change(), "mse")
    assert cause in refused(model, tmp_path / "m.keras", state=SLOTS[:3]).cause


@pytest.mark.parametrize("form", ["m.keras", "m.weights.h5"])
def test_layers_that_did_not_train_have_no_slots(form: str, tmp_path: Path) -> None:
    source = branches("ab")
    source.get_layer("a").trainable = False
    expected = trained(source, OPTIMIZERS["Adam"]())
    FORMATS[form](source, tmp_path / form)
    model = branches("ab")
    model.get_layer("b").trainable = False
    model.compile(OPTIMIZERS["Adam"](), "mse")
    problem = refused(model, tmp_path / form, state=SLOTS[:3])
    if form == "m.keras":
        assert "its optimizer has none of it: the variable did not train there" in problem.cause
        start(model, tmp_path / form, missing="init", state=SLOTS[:3])
        for key, value in slots(model).items():
            known = expected.get(key, np.zeros_like(value))
            np.testing.assert_array_equal(value, known, err_msg=key)
    else:
        assert "it does not say in which order its layers trained" in problem.cause


def test_a_configuration_gives_layers_in_order(tmp_path: Path) -> None:
    inner = keras.Sequential([keras.Input((2,)), *dense(2, None)])
    inner.layers[0].trainable = False
    model = chain([keras.layers.Dense(2), inner, keras.layers.LayerNormalization()])
    model.save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        config = archive.read("config.json")
    layers = layers_in_order(config)
    assert [*layers][1:] == [
        "layers/dense",
        "layers/sequential",
        "layers/sequential/layers/input_layer",
        "layers/sequential/layers/dense",
        "layers/sequential/layers/dense_1",
        "layers/layer_normalization",
    ]
    assert [layer for layer, trains in layers.items() if not trains] == [
        "layers/sequential/layers/dense"
    ]
    for damaged in (b"", b"[]", b"{}", b"[" * 9999, json.dumps({"config": {"layers": 3}}).encode()):
        assert layers_in_order(damaged) == {}
