"""A proof names the layers that have wrong tensors, whatever else they make differ."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers
from numpy.typing import NDArray

import runner
from runner.planning.comparison import Proof
from runner.planning.model_variables import keras_variables
from tests.unit.mapping.test_values import attention, recorded, written

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

# Layers that are one module in the source, and have no records of their own.
FUSED = ("gate", "up")
# LSTMs that are one module in the source, which has the record of the last one.
STACK = ("lower", "upper")
DENSE = ("kernel", "bias")
Network = Callable[[], keras.Model]
BATCH_NORM = ("gamma", "beta", "moving_mean", "moving_variance")


def convolutions() -> keras.Model:
    """A residual block."""
    x = inputs = keras.Input((5, 6))
    hidden = layers.Conv1D(6, 3, padding="same", use_bias=False, name="conv_1")(x)
    hidden = layers.ReLU()(layers.BatchNormalization(name="norm_1")(hidden))
    hidden = layers.Conv1D(6, 3, padding="same", use_bias=False, name="conv_2")(hidden)
    hidden = layers.BatchNormalization(name="norm_2")(hidden)
    x = layers.ReLU()(layers.Add()([hidden, x]))
    return keras.Model(inputs, layers.Dense(3, name="head")(x))


def transformer() -> keras.Model:
    """Attention, and a gated block."""
    x = inputs = keras.Input((5, 6))
    x = x + attention(layers.LayerNormalization(name="before_attention")(x))
    hidden = layers.LayerNormalization(name="before_gate")(x)
    gate, up = (layers.Dense(6, name=name)(hidden) for name in FUSED)
    return keras.Model(inputs, x + layers.Dense(6, name="down")(keras.ops.silu(gate) * up))


def products() -> keras.Model:
    """Two pairs of layers that one layer reads."""
    x = inputs = keras.Input((4,))
    a, b, c, d = (layers.Dense(4, name=name)(x) for name in "abcd")
    x = a * keras.ops.sin(b) + c * keras.ops.sin(d)
    return keras.Model(inputs, layers.Dense(3, name="head")(x))


def recurrent() -> keras.Model:
    """Two LSTMs."""
    x = inputs = keras.Input((3, 4))
    for name in STACK:
        x = layers.LSTM(4, return_sequences=True, name=name)(x)
    return keras.Model(inputs, layers.Dense(3, name="head")(x))


@dataclass(frozen=True)
class Source:
    """A network with random values, as a checkpoint and a reference.

    Attributes:
      model: a network to warm-start.
      checkpoint: the source's tensors.
      reference: what it computes.
      rules: variable -> the expression of its tensor.
    """

    model: keras.Model
    checkpoint: Path
    reference: Path
    rules: Mapping[str, str]

    def proof(
        self, changes: Mapping[str, str], *, in_file: bool = False, broken: str = ""
    ) -> Proof:
        """Proves a warm start in which variables have the values of others.

        Args:
          changes: variable -> the variable whose value it gets, and steps.
          in_file: whether the plan has the right rules, as if the checkpoint were wrong.
          broken: a variable that gets NaN.
        """
        wrong = {}
        for variable, change in changes.items():
            other, *steps = change.split(" | ")
            wrong[variable] = " | ".join([self.rules[other], *steps])
        plan = self.warm_started(wrong)
        if in_file:
            plan = runner.plan(self.model, self._scaffold(self.rules))
        if broken:
            variable = keras_variables(self.model)[broken]
            variable.assign(variable * np.nan)
        return runner.prove(self.model, self.reference, plan)

    def warm_started(self, rules: Mapping[str, str] = MappingProxyType({})) -> Any:
        """Warm-starts the model, with other rules for some variables; returns the plan."""
        return runner.warm_start(self.model, self._scaffold({**self.rules, **rules}))

    def _scaffold(self, rules: Mapping[str, str]) -> Any:
        scaffold = {"checkpoint": str(self.checkpoint), "variables": {"include": ["*"]}}
        return {"net": {**scaffold, "rules": rules}}


@functools.cache
def source_of(network: Network, folder: Path) -> Source:
    """Writes a source of random values, once for all tests."""
    random, model = np.random.default_rng(0), network()
    tensors: dict[str, NDArray[Any]] = {}
    rules: dict[str, str] = {}
    for path, variable in keras_variables(model).items():
        layer, *_, leaf = path.split("/")
        if leaf == "seed_generator_state":
            continue  # Of the dropout of the LSTMs.
        value = random.normal(size=variable.shape) * 0.4
        if leaf in ("gamma", "moving_mean", "moving_variance"):
            value = random.uniform(0.5, 1.5, variable.shape)
        variable.assign(value)
        is_stacked = layer in STACK
        name = f"rnn.{leaf}_{STACK.index(layer)}" if is_stacked else f"{layer}.{leaf}"
        rules[path], tensors[name] = name, value.astype(np.float32)
    reference = recorded(model, random.normal(size=(4, *model.input_shape[1:])).astype(np.float32))
    records = {name.removeprefix("activations/"): name for name in reference}
    for leaf in DENSE if "gate" in records else ():
        parts = [tensors.pop(f"{name}.{leaf}") for name in FUSED]
        tensors[f"gate_up.{leaf}"] = np.concatenate(parts, -1)
        for part, name in enumerate(FUSED):
            step = f"split(2, {part}, axis={parts[0].ndim - 1})"
            rules[f"{name}/{leaf}"] = f"gate_up.{leaf} | {step}"
    if "gate" in records:
        fused = [reference.pop(records[name]) for name in FUSED]
        reference["activations/gate_up"] = np.concatenate(fused, -1)
    if "upper" in records:
        _, reference["activations/rnn"] = (reference.pop(records[name]) for name in STACK)
    folder = folder / network.__name__
    folder.mkdir()
    return Source(model, *written(folder, tensors, reference), rules)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources")


@pytest.mark.parametrize("network", [convolutions, transformer, products, recurrent])
def test_a_right_model_agrees(network: Network, folder: Path) -> None:
    proof = source_of(network, folder).proof({})
    assert proof.agrees
    assert (proof.first_difference, proof.findings) == (None, ())


def exchanged(one: str, two: str) -> dict[str, str]:
    return {one: two, two: one}


def whole(one: str, two: str, leaves: Sequence[str]) -> dict[str, str]:
    pairs = (exchanged(f"{one}/{leaf}", f"{two}/{leaf}") for leaf in leaves)
    return {variable: other for pair in pairs for variable, other in pair.items()}


# What is planted -> the network, the changes, and the layers that have to be named first.
PLANTED: dict[str, tuple[Network, dict[str, str], set[str]]] = {
    "kernels": (convolutions, exchanged("conv_1/kernel", "conv_2/kernel"), {"conv_1", "conv_2"}),
    "kernels, far": (transformer, exchanged("v/kernel", "down/kernel"), {"v", "down"}),
    "kernels, one without a record": (
        transformer, exchanged("o/kernel", "up/kernel"), {"o", "up"}
    ),
    "norms": (convolutions, whole("norm_1", "norm_2", BATCH_NORM), {"norm_1", "norm_2"}),
    "layers, far": (transformer, whole("q", "down", DENSE), {"q", "down"}),
    "scales of norms": (
        transformer,
        exchanged("before_attention/gamma", "before_gate/gamma"),
        {"before_attention", "before_gate"},
    ),
    "gamma and beta": (convolutions, exchanged("norm_2/gamma", "norm_2/beta"), {"norm_2"}),
    "mean and variance": (
        convolutions, exchanged("norm_1/moving_mean", "norm_1/moving_variance"), {"norm_1"}
    ),
    "bias and beta": (
        transformer, exchanged("v/bias", "before_gate/beta"), {"v", "before_gate"}
    ),
    "query and key": (transformer, whole("q", "k", DENSE), {"q", "k"}),
    "key and value": (transformer, whole("k", "v", DENSE), {"k", "v"}),
    "query and value, kernels": (transformer, exchanged("q/kernel", "v/kernel"), {"q", "v"}),
    "two pairs": (
        products, whole("a", "b", DENSE) | whole("c", "d", DENSE), {"a", "b", "c", "d"}
    ),
    "parts": (transformer, whole("gate", "up", DENSE), {"gate", "up"}),
    "kernels of parts": (transformer, exchanged("gate/kernel", "up/kernel"), {"gate", "up"}),
    "recurrent layers": (
        recurrent,
        exchanged("lower/lstm_cell/kernel", "upper/lstm_cell/kernel"),
        {"lower/lstm_cell", "upper/lstm_cell"},
    ),
    "not transposed": (transformer, {"o/kernel": "o/kernel | transpose"}, {"o"}),
    "a part not transposed": (transformer, {"up/kernel": "up/kernel | transpose"}, {"up"}),
    "sign": (convolutions, {"conv_2/kernel": "conv_2/kernel | scale(-1)"}, {"conv_2"}),
    "sign of a part": (transformer, {"gate/bias": "gate/bias | scale(-1)"}, {"gate"}),
    "sign, recurrent": (
        recurrent,
        {"lower/lstm_cell/recurrent_kernel": "lower/lstm_cell/recurrent_kernel | scale(-1)"},
        {"lower/lstm_cell"},
    ),
    "sign of a bias that softmax hides": (transformer, {"k/bias": "k/bias | scale(-1)"}, {"k"}),
    "siblings, and a sign behind them": (
        transformer,
        whole("q", "k", DENSE) | {"down/kernel": "down/kernel | scale(-1)"},
        {"q", "k", "down"},
    ),
    "siblings, and parts behind them": (
        transformer, whole("q", "k", DENSE) | whole("gate", "up", DENSE), {"q", "k", "gate", "up"}
    ),
    "kernels, and gamma and beta behind one of them": (
        convolutions,
        exchanged("conv_1/kernel", "conv_2/kernel") | exchanged("norm_2/gamma", "norm_2/beta"),
        {"conv_1", "conv_2", "norm_2"},
    ),
    "a transpose and a sign": (
        transformer,
        {"o/kernel": "o/kernel | transpose", "up/bias": "up/bias | scale(-1)"},
        {"o", "up"},
    ),
    "a transpose and a sign of what one layer reads": (
        transformer,
        {"gate/kernel": "gate/kernel | transpose", "up/bias": "up/bias | scale(-1)"},
        {"gate", "up"},
    ),
    "recurrent layers, and a sign": (
        recurrent,
        exchanged("lower/lstm_cell/kernel", "upper/lstm_cell/kernel")
        | {"head/bias": "head/bias | scale(-1)"},
        {"lower/lstm_cell", "upper/lstm_cell", "head"},
    ),
    "three in a circle": (
        transformer,
        {"q/kernel": "v/kernel", "v/kernel": "down/kernel", "down/kernel": "q/kernel"},
        {"q", "v", "down"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED)
def test_the_layers_with_wrong_tensors_are_named_first(planted: str, folder: Path) -> None:
    network, changes, guilty = PLANTED[planted]
    proof = source_of(network, folder).proof(changes, in_file=True)
    differing = [one.layer for one in proof.layers if not one.agrees]
    assert {*differing} == guilty
    assert "once that is undone" in str(proof.first_difference)
    assert all(layer in str(proof) for layer in guilty)
    assert proof.compared <= proof.modules


@pytest.mark.parametrize(
    "planted", ["kernels, one without a record", "key and value", "parts", "recurrent layers"]
)
def test_the_layers_with_wrong_rules_are_named_first(planted: str, folder: Path) -> None:
    """A layer that has another one's tensor by its rule may agree with the other one's record."""
    network, changes, guilty = PLANTED[planted]
    proof = source_of(network, folder).proof(changes)
    assert proof.first_difference is not None
    assert proof.first_difference.layer in guilty
    assert "once that is undone" in str(proof.first_difference)
    assert not proof.contradiction


def test_a_tensor_that_two_variables_take_is_told_with_what_none_takes(folder: Path) -> None:
    proof = source_of(transformer, folder).proof({"down/kernel": "o/kernel"})
    assert proof.first_difference is not None
    assert proof.first_difference.layer == "down"
    told = "kernel: o/kernel takes the same, no variable takes down.kernel"
    assert told in proof.findings


@pytest.mark.parametrize("planted", ["kernels", "norms", "layers, far", "query and key"])
def test_tensors_that_only_their_names_make_right_contradict_the_reference(
    planted: str, folder: Path
) -> None:
    network, changes, guilty = PLANTED[planted]
    proof = source_of(network, folder).proof(changes, in_file=True)
    assert any(f"{layer} has its module's tensors by name" in str(proof) for layer in guilty)
    assert "record a reference of this checkpoint's model" in str(proof.problem())


@pytest.mark.parametrize("planted", ["norms", "layers, far", "query and key", "two pairs"])
def test_a_right_model_of_a_checkpoint_with_exchanged_tensors_is_not_blamed(
    planted: str, folder: Path, tmp_path: Path
) -> None:
    network, changes, guilty = PLANTED[planted]
    source = source_of(network, folder)
    tensors = dict(runner.open_checkpoint(str(source.checkpoint)).items())
    names = {source.rules[one]: source.rules[other] for one, other in changes.items()}
    tensors |= {name: tensors[other] for name, other in names.items()}
    checkpoint, _ = written(tmp_path, tensors, {"inputs": np.zeros(1)})
    proof = replace(source, checkpoint=checkpoint).proof(changes)
    assert all(output.agrees for output in proof.outputs)
    assert proof.first_difference is not None
    assert "once that is undone" not in str(proof)
    assert any(f"{layer} computes what {layer} did" in proof.contradiction for layer in guilty)
    assert "the checkpoint and the reference do not belong together" in str(proof)


@pytest.mark.parametrize(
    ("network", "variable"),
    [
        (convolutions, "conv_1/kernel"),
        (transformer, "o/kernel"),
        (transformer, "up/kernel"),
        (recurrent, "lower/lstm_cell/kernel"),
    ],
)
def test_a_layer_with_nan_is_named_first(network: Network, variable: str, folder: Path) -> None:
    proof = source_of(network, folder).proof({}, broken=variable)
    assert proof.first_difference is not None
    assert proof.first_difference.layer == variable.rpartition("/")[0]
    assert str(proof.first_difference) == "has a tensor with NaN"


def test_causes_beside_nan_are_named(folder: Path) -> None:
    changes = whole("q", "k", DENSE)
    proof = source_of(transformer, folder).proof(changes, in_file=True, broken="up/kernel")
    differing = {one.layer: str(one) for one in proof.layers if not one.agrees}
    assert {*differing} == {"q", "k", "up", "down"}
    assert differing["down"] == "the model computes NaN or infinity"
    assert "further cause: up (gate_up): has a tensor with NaN" in str(proof)
