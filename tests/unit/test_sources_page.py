"""The examples of "Weights from elsewhere" restore the values of their files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import msgpack
import numpy as np
import pytest
import safetensors.numpy
import yaml
from huggingface_hub import constants
from numpy.typing import NDArray

import runner
from tests.conformance.goldens import old_array_protocol
from tests.support.torch_files import save_arrays
from tests.support.web import served

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
PAGE = (ROOT / "docs" / "how-to" / "weights-from-elsewhere.md").read_text()
COMMIT = "a" * 40
WORDS = {"the": 1.0, "cat": 2.0, "sat": 3.0}


def cnn() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((4, 4, 2)),
            keras.layers.Conv2D(3, 3, name="conv"),
            keras.layers.BatchNormalization(name="norm"),
        ]
    )


def query() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, name="query")])


def dense() -> keras.Model:
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, name="dense")])


def words() -> keras.Model:
    return keras.Sequential([keras.Input((1,)), keras.layers.Embedding(4, 5, name="words")])


def _torch() -> Mapping[str, NDArray[Any]]:
    with np.load(DATA / "torch" / "state_dict-2.15.npz") as arrays:
        values = {key.partition(":")[2]: value for key, value in arrays.items()}
    return {name: value for name, value in values.items() if name.startswith(("conv", "norm"))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints that the examples name."""
    folder = tmp_path_factory.mktemp("page")
    pretrained = folder / "pretrained"
    pretrained.mkdir()
    shutil.copy(DATA / "torch" / "state_dict-2.15.pt", pretrained / "cnn.pt")
    shutil.copy(DATA / "torch" / "lightning-2.15.pt", pretrained / "last.ckpt")
    shard = "pytorch_model-00001-of-00001.bin"
    values = {n: value for n, value in _torch().items() if value.ndim}
    save_arrays(pretrained / shard, values)
    index = {"weight_map": dict.fromkeys(values, shard)}
    (pretrained / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    shutil.copy(DATA / "lora" / "base.safetensors", pretrained / "model.safetensors")
    shutil.copytree(DATA / "orbax" / "manager", pretrained / "orbax")
    model = cnn()
    for variable in model.weights:
        variable.assign(np.full(variable.shape, 0.5))
    (pretrained / "my_preset").mkdir()
    (pretrained / "my_preset" / "config.json").write_text("{}")
    with old_array_protocol():
        model.save_weights(pretrained / "my_preset" / "model.weights.h5")
    snapshot = folder / "hub" / "models--org--model" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    shutil.copy(DATA / "lora" / "base.safetensors", snapshot / "model.safetensors")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(COMMIT)
    array = np.arange(24, dtype=np.float32)
    packed = [
        msgpack.ExtType(1, msgpack.packb((value.shape, value.dtype.name, value.tobytes())))
        for value in (array.reshape(4, 6), array[:6])
    ]
    tree = {"params": {"Dense_0": dict(zip(("kernel", "bias"), packed, strict=True))}}
    (pretrained / "flax_model.msgpack").write_bytes(msgpack.packb(tree))
    lines = [" ".join([word, *[str(value)] * 5]) for word, value in WORDS.items()]
    (pretrained / "glove.txt").write_text("\n".join(lines) + "\n")
    (folder / "vocabulary.txt").write_text("sat\nnew\nthe\ncat\n")
    return folder


@pytest.fixture
def address(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of a web server with the files."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path / "cache"))
    with served(folder / "pretrained") as address:
        yield address


def _query() -> NDArray[Any]:
    tensors = safetensors.numpy.load_file(DATA / "lora" / "base.safetensors")
    value: NDArray[Any] = tensors["query.weight"].T
    return value


KERNEL = np.arange(24, dtype=np.float32).reshape(4, 6)
# For each example in its order: the model, and the expected value of its first variable.
Expected = Callable[[], NDArray[Any]]
EXAMPLES: tuple[tuple[str, Callable[[], keras.Model], Expected], ...] = (
    ("PyTorch", cnn, lambda: _torch()["conv.weight"].transpose(2, 3, 1, 0)),
    ("Lightning", cnn, lambda: _torch()["conv.weight"].transpose(2, 3, 1, 0)),
    ("sharded", cnn, lambda: _torch()["conv.weight"].transpose(2, 3, 1, 0)),
    ("safetensors", query, _query),
    ("KerasHub", cnn, lambda: np.full((3, 3, 2, 3), 0.5)),
    ("Hugging Face", query, _query),
    ("Flax", dense, lambda: KERNEL),
    ("Orbax", dense, lambda: KERNEL),
    ("word vectors", words, lambda: np.array([3.0, 0.0, 1.0, 2.0]).repeat(5).reshape(4, 5)),
    ("web server", query, _query),
)
BLOCKS = re.findall(r"```yaml\n(scaffolds:\n.*?)```", PAGE, re.DOTALL)


def test_every_example_is_tested() -> None:
    assert len(BLOCKS) == len(EXAMPLES)


@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=[name for name, *_ in EXAMPLES])
def test_an_example_restores_the_values(number: int, address: str) -> None:
    name, build, expected = EXAMPLES[number]
    scaffolds = yaml.safe_load(BLOCKS[number].replace("https://example.com", address))["scaffolds"]
    model = build()
    if name == "Orbax":
        pytest.importorskip("tensorstore", reason="Orbax's checkpoints need the extra `orbax`")
    if name == "word vectors":
        model.weights[0].assign(np.zeros((4, 5)))
    plan = runner.warm_start(model, scaffolds)
    assert all(assignment.source_tensor for assignment in plan.assignments)
    np.testing.assert_allclose(model.weights[0].numpy(), expected(), rtol=1e-6)
