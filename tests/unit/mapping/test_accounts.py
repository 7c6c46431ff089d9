"""A map accounts for every variable and every tensor, in every format; certain is what is whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

import runner
from runner.checkpoints.open import open_reader
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec, RenamedReader
from runner.mapping import proposal as proposals
from tests.conformance.goldens import MAKERS, make, save_npz

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5"),
]
Arrays = dict[str, NDArray[Any]]
# Shapes that leave one choice.
SHAPES = {
    "conv/kernel": (3, 4),
    "conv/bias": (4,),
    "dense/kernel": (4, 5),
    "dense/bias": (5,),
}
MORE = {"flat/kernel": (6, 7)}


def values(names: list[str]) -> Arrays:
    shapes = {**SHAPES, **MORE}
    return {name: np.full(shapes[name], at + 1, np.float32) for at, name in enumerate(names)}


def _model(arrays: Arrays) -> keras.Model:
    """A Keras model with these variables, branches of an input each."""
    inputs, outputs = [], []
    for name in dict.fromkeys(name.partition("/")[0] for name in arrays):
        kernel, bias = arrays[f"{name}/kernel"], arrays.get(f"{name}/bias")
        layer = keras.layers.Dense(kernel.shape[1], use_bias=bias is not None, name=name)
        inputs.append(keras.Input((kernel.shape[0],)))
        outputs.append(layer(inputs[-1]))
        layer.set_weights([kernel] if bias is None else [kernel, bias])
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def _objects(model: keras.Model, path: Path) -> str:
    saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    return str(saved.write(str(path)))


OF_KERAS: dict[str, Callable[[keras.Model, Path], Any]] = {
    ".keras": lambda model, path: model.save(path),
    ".weights.h5": lambda model, path: model.save_weights(path),
    ".h5": lambda model, path: model.save(path),
    ".objects": _objects,
}
# Their makers build Keras's layers for all of their tensors; `OF_KERAS` stands for them.
WHOLE = ("object_based", "keras_weights", "keras_shards", "keras_h5_of_keras3", "keras_archive")
FORMATS = [*OF_KERAS, *(name for name in MAKERS if name not in WHOLE)]


def written(form: str, folder: Path, arrays: Arrays) -> str:
    if form not in OF_KERAS:
        return make(form, folder, arrays).path
    OF_KERAS[form](_model(arrays), folder / f"source{form}")
    return str(folder / f"source{form}")


_SLOTS = ("optimizer/vars", "optimizer/_variables", "optimizer_weights")


class _Dropping(RenamedReader):
    """A reader that passes over one tensor of a shape."""

    def spec(self) -> CheckpointSpec:
        spec = super().spec()
        tensors = {
            name: tensor
            for name, tensor in spec.tensors.items()
            if tensor.shape != (5,) or name.startswith(_SLOTS)
        }
        aliases = {alias: name for alias, name in spec.aliases.items() if name in tensors}
        return replace(spec, tensors=tensors, aliases=aliases)


def _dropping(path: str, *arguments: Any) -> CheckpointReader:
    reader = open_reader(path, *arguments)
    return _Dropping(reader, path, path)


# Change -> what the file holds, and what the model has.
CHANGES: dict[str, tuple[list[str], list[str]]] = {
    "nothing": ([*SHAPES], [*SHAPES]),
    "a bias less in the file": ([*SHAPES][:3], [*SHAPES]),
    "a layer less in the file": ([*SHAPES][:2], [*SHAPES]),
    "a layer more in the file": ([*SHAPES, *MORE], [*SHAPES]),
    "a bias less in the model": ([*SHAPES], [*SHAPES][:3]),
    "nothing that fits": ([*MORE], [*SHAPES]),
    "a reader that drops a bias": ([*SHAPES], [*SHAPES]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("form", FORMATS)
def test_certain_is_what_accounts_for_all(
    form: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, wanted = CHANGES[change]
    path = written(form, tmp_path, values(stored))
    if "reader" in change:
        monkeypatch.setattr(proposals, "open_reader", _dropping)
    keras.utils.clear_session()
    model = _model({name: value + 9 for name, value in values(wanted).items()})
    proposal = runner.propose(model, path)
    assert proposal.is_certain == (change == "nothing"), proposal
    (one,) = proposal.correspondences.values()
    assert {*one.pairs, *one.constants, *one.left} == {*wanted}
    spec = open_reader(path).spec()
    taken = [name for pair in one.pairs.values() for name in pair.taken.tensors]
    found = [spec.find(name) for name in (*taken, *one.unused, *one.others, *one.codes)]
    accounted = [tensor.name for tensor in found if tensor]
    assert len(accounted) == len({*accounted}) == len(found)
    dropped = 1 if "reader" in change else 0
    assert len(accounted) + dropped == len(spec.tensors)
    if change == "nothing":
        runner.warm_start(model, proposal.scaffolds)
        for name, value in values(stored).items():
            layer, leaf = name.split("/")
            np.testing.assert_array_equal(getattr(model.get_layer(layer), leaf).numpy(), value)


def test_a_file_without_weights_has_no_rules(tmp_path: Path) -> None:
    np.savez(tmp_path / "counts.npz", steps=np.arange(3))
    proposal = runner.propose(_model(values([*SHAPES])), tmp_path / "counts.npz")
    assert not proposal.is_certain
    assert repr(proposal).startswith("# No rules")
    assert "Not a weight (not floats): steps" in str(proposal)


def test_codes_in_a_weights_place_leave_no_rules(tmp_path: Path) -> None:
    arrays = values([*SHAPES])
    codes = arrays["conv/kernel"].astype(np.int8)
    quantized = {**arrays, "conv/kernel": codes, "conv/kernel_scale": np.ones(1, np.float32)}
    save_npz(tmp_path / "codes.npz", **quantized)
    proposal = runner.propose(_model(arrays), tmp_path / "codes.npz")
    assert str(proposal).startswith("# No rules")
    (codes_problem,) = [p for p in proposal.doubts() if p.state == "conv/kernel may hold weights"]
    assert codes_problem.cause == "int8 of quantized weights (codes with scales)"
