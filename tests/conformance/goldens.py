"""Golden checkpoints of the same tensors, by one registered maker for each format."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import keras
import ml_dtypes
import msgpack
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
import tensorstore
from numpy.typing import NDArray
from packaging.version import Version

from tests.support.tables import recompressed
from tests.support.torch_files import save_arrays, save_legacy, state_dict

Tensors = Mapping[str, NDArray[Any]]

STEP = 1234
MODEL = "golden"


def tensors(offset: float = 0.0) -> dict[str, NDArray[Any]]:
    """The tensors of every golden; eighths, which bfloat16 holds exactly."""
    shapes = {
        "conv/kernel": (3, 3, 2, 4),
        "conv/bias": (4,),
        "norm/gamma": (4,),
        "norm/beta": (4,),
        "norm/moving_mean": (4,),
        "norm/moving_variance": (4,),
        "embed/embeddings": (7, 3),
        "dense/kernel": (4, 5),
        "dense/bias": (5,),
    }
    tensors = {}
    for number, (name, shape) in enumerate(shapes.items()):
        values = (np.arange(np.prod(shape)) * (number + 1)) % 64 / 8 + 0.125
        tensors[name] = (values.reshape(shape) + offset).astype(np.float32)
    return tensors


@dataclass(frozen=True)
class Golden:
    """A checkpoint made for a test.

    Attributes:
      path: the argument of `open_reader`.
      files: its files.
      dtype: the dtype of all tensors but the step.
      step: the step it records; None when the format has no place for one.
      checksums: whether the format itself detects a flipped byte in a tensor.
    """

    path: str
    files: tuple[Path, ...]
    dtype: str = "float32"
    step: int | None = STEP
    checksums: bool = True


def save_bundle(prefix: Path | str, values: Mapping[str, Any]) -> str:
    """Saves arrays or tensors in a bundle, and returns its prefix."""
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=[tf.convert_to_tensor(value) for value in values.values()],
    )
    return str(prefix)


def save_npz(path: Path, **values: Any) -> str:
    """Saves arrays, or values that NumPy converts to arrays, and returns the path."""
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in values.items()}
    np.savez(path, **arrays)
    return str(path)


Maker = Callable[[Path, Tensors], object]
MAKERS: dict[str, tuple[Maker, dict[str, Any]]] = {}


def golden(**attributes: Any) -> Callable[[Maker], Maker]:
    """Registers a maker: called with an empty folder and tensors, it returns the golden's path."""

    def register(maker: Maker) -> Maker:
        MAKERS[maker.__name__] = maker, attributes
        return maker

    return register


def make(name: str, folder: Path, values: Tensors | None = None) -> Golden:
    """Makes a golden in an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    maker, attributes = MAKERS[name]
    path = str(maker(folder, tensors() if values is None else values))
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return Golden(path, tuple(files), **attributes)


def everything(values: Tensors) -> dict[str, Any]:
    """The tensors and the step."""
    return {**values, "global_step": np.asarray(STEP, np.int64)}


@contextlib.contextmanager
def graph_with(values: Tensors) -> Iterator[tf.compat.v1.Session]:
    """Gives a session with the tensors and the step as initialised variables."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in values.items():
            tf.compat.v1.get_variable(name, initializer=value)
        tf.compat.v1.get_variable("global_step", initializer=np.int64(STEP), trainable=False)
        session.run(tf.compat.v1.global_variables_initializer())
        yield session


def save_graph(folder: Path, values: Tensors, **saver: Any) -> str:
    """Saves by name with a `Saver`, as graph code does, and returns the prefix."""
    with graph_with(values) as session:
        path = tf.compat.v1.train.Saver(**saver).save(
            session, str(folder / "model.ckpt"), STEP, write_meta_graph=False
        )
    return str(path)


@golden()
def bundle(folder: Path, values: Tensors) -> object:
    return save_graph(folder, values)


@golden()
def bundle_sharded(folder: Path, values: Tensors) -> object:
    """Two shards, as two parameter servers write them."""
    stored = everything(values)
    prefix = str(folder / "model.ckpt-1234")
    names = sorted(stored)
    parts = [
        save_bundle(f"{prefix}_part{shard}", {name: stored[name] for name in names[shard::2]})
        for shard in (0, 1)
    ]
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix)
    return prefix


@golden()
def bundle_snappy(folder: Path, values: Tensors) -> object:
    """With an index in compressed blocks, as about half of the published ones are."""
    prefix = save_graph(folder, values)
    index = Path(f"{prefix}.index")
    index.write_bytes(recompressed(index.read_bytes(), 1))
    return prefix


@golden()
def bundle_partitioned(folder: Path, values: Tensors) -> object:
    """Kernels in two slices each, as `fixed_size_partitioner` leaves them."""
    prefix = str(folder / "model.ckpt-1234")
    names, slices, parts = entriesof(values)
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=slices, tensors=parts)
    return prefix


def entriesof(values: Tensors) -> tuple[list[str], list[str], list[tf.Tensor]]:
    entries = [("global_step", "", tf.constant(STEP, tf.int64))]
    for name, value in values.items():
        if not name.endswith("kernel"):
            entries.append((name, "", tf.constant(value)))
            continue
        half = (value.shape[0] + 1) // 2
        whole, rest = " ".join(map(str, value.shape)), ":-" * (value.ndim - 1)
        for start, part in ((0, value[:half]), (half, value[half:])):
            entries.append((name, f"{whole} {start},{len(part)}{rest}", tf.constant(part)))
    names, slices, parts = map(list, zip(*entries, strict=True))
    return names, slices, parts


@golden()
def v1(folder: Path, values: Tensors) -> object:
    return save_graph(folder, values, write_version=tf.compat.v1.train.SaverDef.V1)


@golden()
def v1_sharded(folder: Path, values: Tensors) -> object:
    """A file for each device; the path is a pattern."""
    version = tf.compat.v1.train.SaverDef.V1
    return save_graph(folder, values, write_version=version, sharded=True)


@golden()
def v1_partitioned(folder: Path, values: Tensors) -> object:
    path = str(folder / "model.ckpt-1234")
    names, slices, parts = entriesof(values)
    tf.raw_ops.SaveSlices(filename=path, tensor_names=names, shapes_and_slices=slices, data=parts)
    return path


def module(values: Tensors) -> tf.Module:
    """A tree of modules with a variable for every tensor."""
    root = tf.Module()
    for name, value in values.items():
        layer, _, variable = name.partition("/")
        if not hasattr(root, layer):
            setattr(root, layer, tf.Module())
        setattr(getattr(root, layer), variable, tf.Variable(value, name=f"own/{name}"))
    root.step = tf.Variable(STEP, dtype=tf.int64, name="global_step")
    return root


@golden()
def object_based(folder: Path, values: Tensors) -> object:
    root = module(values)
    parts = {name: getattr(root, name) for name in ("conv", "norm", "embed", "dense", "step")}
    return tf.train.Checkpoint(**parts).write(str(folder / "ckpt-1"))


@golden()
def saved_model_of_tf2(folder: Path, values: Tensors) -> object:
    tf.saved_model.save(module(values), str(folder / "exported"))
    return folder / "exported"


@golden()
def saved_model_of_tf1(folder: Path, values: Tensors) -> object:
    builder = tf.compat.v1.saved_model.Builder(str(folder / "exported"))
    with graph_with(values) as session:
        builder.add_meta_graph_and_variables(session, [tf.saved_model.SERVING])
        builder.save()
    return folder / "exported"


def keras_model(values: Tensors) -> keras.Model:
    image, token = keras.Input((3, 3, 2)), keras.Input((), dtype="int32")
    features = keras.layers.Conv2D(4, 3, name="conv")(image)
    features = keras.layers.BatchNormalization(name="norm")(features)
    logits = keras.layers.Dense(5, name="dense")(keras.layers.Flatten(name="flat")(features))
    vector = keras.layers.Embedding(7, 3, name="embed")(token)
    model = keras.Model([image, token], [logits, vector], name=MODEL)
    for layer in ("conv", "norm", "dense", "embed"):
        weights = [value for name, value in values.items() if name.startswith(f"{layer}/")]
        model.get_layer(layer).set_weights(weights)
    model.compile(optimizer=keras.optimizers.SGD(name="sgd"), loss="mse")
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(STEP)
    return model


@contextlib.contextmanager
def old_array_protocol() -> Iterator[None]:
    """Lets Keras convert its variables, which it does by a protocol that NumPy 2 deprecates."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        yield


def saved_by_keras(path: Path, values: Tensors) -> Path:
    with old_array_protocol():
        model = keras_model(values)
        (model.save_weights if path.name.endswith(".weights.h5") else model.save)(path)
    return path


@golden(checksums=False)
def keras_weights(folder: Path, values: Tensors) -> object:
    return saved_by_keras(folder / "model.weights.h5", values)


@golden(checksums=False)
def keras_shards(folder: Path, values: Tensors) -> object:
    """Several `.weights.h5` files, as presets of KerasHub have them."""
    path = folder / "model.weights.json"
    if Version(keras.__version__) < Version("3.11"):
        pytest.skip("Keras 3.10 cannot read a layer in two shards itself, older ones write none")
    with old_array_protocol():
        keras_model(values).save_weights(path, max_shard_size=300 / 1024**3)
    return path


@golden(checksums=False)
def keras_h5_of_keras3(folder: Path, values: Tensors) -> object:
    return saved_by_keras(folder / "model.h5", values)


@golden(checksums=False)
def keras_h5_of_keras2(folder: Path, values: Tensors) -> object:
    """The layout that Keras 2 wrote; it does not run beside Keras 3."""
    path = folder / "model.h5"
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = b"2.15.0"
        file.attrs["backend"] = b"tensorflow"
        file.attrs["model_config"] = json.dumps({"class_name": "Functional", "config": {}})
        weights = file.create_group("model_weights")
        layers = ["conv", "norm", "embed", "dense", "flat"]
        weights.attrs["layer_names"] = [layer.encode() for layer in layers]
        for layer in layers:
            group = weights.create_group(layer)
            names = [name for name in values if name.startswith(f"{layer}/")]
            group.attrs["weight_names"] = [f"{name}:0".encode() for name in names]
            for name in names:
                group[f"{name}:0"] = values[name]
        optimizer = file.create_group("optimizer_weights")
        optimizer.attrs["weight_names"] = [b"SGD/iter:0"]
        optimizer["SGD/iter:0"] = np.int64(STEP)
    return path


@golden()
def keras_archive(folder: Path, values: Tensors) -> object:
    return saved_by_keras(folder / "model.keras", values)


@golden(step=None, checksums=False)
def safetensors_file(folder: Path, values: Tensors) -> object:
    safetensors.numpy.save_file(dict(values), folder / "model.safetensors")
    return folder / "model.safetensors"


@golden(dtype="bfloat16", step=None, checksums=False)
def safetensors_bfloat16(folder: Path, values: Tensors) -> object:
    narrow = {name: value.astype(ml_dtypes.bfloat16) for name, value in values.items()}
    safetensors.numpy.save_file(narrow, folder / "model.safetensors")
    return folder / "model.safetensors"


@golden(step=None, checksums=False)
def safetensors_shards(folder: Path, values: Tensors) -> object:
    weight_map: dict[str, str] = {}
    names = sorted(values)
    for number in (1, 2):
        shard = f"model-{number:05d}-of-00002.safetensors"
        part = {name: values[name] for name in names[number - 1 :: 2]}
        safetensors.numpy.save_file(part, folder / shard)
        weight_map |= dict.fromkeys(part, shard)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


@golden(checksums=False)
def torch_file(folder: Path, values: Tensors) -> object:
    """A checkpoint of Lightning."""
    return save_arrays(folder / "model.ckpt", values, STEP)


@golden(step=None, checksums=False)
def torch_legacy(folder: Path, values: Tensors) -> object:
    return save_legacy(folder / "model.pt", state_dict(values), values)


@golden(step=None, checksums=False)
def torch_shards(folder: Path, values: Tensors) -> object:
    weight_map: dict[str, str] = {}
    for number, names in enumerate((sorted(values)[0::2], sorted(values)[1::2]), 1):
        shard = f"pytorch_model-{number:05d}-of-00002.bin"
        save_arrays(folder / shard, {name: values[name] for name in names})
        weight_map |= dict.fromkeys(names, shard)
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


@golden(step=None, checksums=False)
def orbax(folder: Path, values: Tensors) -> object:
    """A tree of arrays, each in a folder, without chunks that are compressed."""
    metadata = {}
    for name, value in values.items():
        keys = name.split("/")
        spec = {
            "driver": "zarr",
            "kvstore": {"driver": "file", "path": f"{folder}/tree/{'.'.join(keys)}/"},
            "metadata": {"compressor": None},
        }
        array = tensorstore.open(spec, create=True, dtype=value.dtype.name, shape=value.shape)
        array.result().write(value).result()
        parts = [{"key": key, "key_type": 2} for key in keys]
        metadata[str(tuple(keys))] = {"key_metadata": parts, "value_metadata": {}}
    (folder / "tree" / "_METADATA").write_text(json.dumps({"tree_metadata": metadata}))
    return folder / "tree"


@golden(step=None, checksums=False)
def flax_msgpack(folder: Path, values: Tensors) -> object:
    """As `flax.serialization.to_bytes` writes a nested dictionary."""
    root: dict[str, Any] = {}
    for name, value in values.items():
        layer, variable = name.split("/")
        packed = msgpack.packb((value.shape, value.dtype.name, value.tobytes()))
        root.setdefault(layer, {})[variable] = msgpack.ExtType(1, packed)
    (folder / "flax_model.msgpack").write_bytes(msgpack.packb(root))
    return folder / "flax_model.msgpack"


@golden()
def npz(folder: Path, values: Tensors) -> object:
    np.savez(folder / "model.npz", **everything(values))
    return folder / "model.npz"


@golden()
def npz_compressed(folder: Path, values: Tensors) -> object:
    np.savez_compressed(folder / "model.npz", **everything(values))
    return folder / "model.npz"


@golden(checksums=False)
def npy_record(folder: Path, values: Tensors) -> object:
    """A dict without a pickle: a record with a field for every tensor."""
    stored = everything(values)
    dtype = np.dtype([(name, value.dtype, value.shape) for name, value in stored.items()])
    record = np.zeros((), dtype)
    for name, value in stored.items():
        record[name] = value
    np.save(folder / "model.npy", record, allow_pickle=False)
    return folder / "model.npy"


def relocated(golden: Golden, folder: Path, target: str) -> str:
    """Returns the path that a golden in `folder` has below `target`."""
    return os.path.join(target, os.path.relpath(golden.path, folder))
