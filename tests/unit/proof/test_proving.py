"""Proofs: a model is compared with what the source of its weights computes, layer by layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

import runner
from runner.errors import CheckpointError, ConfigError
from runner.planning.comparison import Proof

Arrays = dict[str, NDArray[Any]]
L = keras.layers

# Layer -> its module in a source that names and lays out everything as PyTorch does.
MODULES = {"conv1": "body.0", "norm": "body.1", "conv2": "body.3", "head": "head"}
LEAVES = {
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
# What the recording lines of the how-to write.
SETTINGS = {
    "body.1": {"type": "BatchNorm2d", "eps": 1e-5, "momentum": 0.1},
    "body.3": {"type": "Conv2d", "stride": [1, 1], "padding": [0, 0], "groups": 1},
    "head": {"type": "Linear"},
}


def net(
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    strides: int = 1,
    padding: str = "valid",
    activation: str | None = "relu",
    bias: bool = True,
    flat: bool = False,
    dtype: str = "float32",
) -> keras.Model:
    """A small CNN with dropout; `flat` puts a Flatten before the head."""
    image = keras.Input((6, 6, 3))
    with_policy = {"dtype": dtype}
    norm = L.BatchNormalization(epsilon=epsilon, momentum=momentum, name="norm", **with_policy)
    conv2 = L.Conv2D(
        5, 3, strides, padding, activation=activation, use_bias=bias, name="conv2", **with_policy
    )
    x = norm(L.Conv2D(4, 3, padding="same", name="conv1", **with_policy)(image))
    x = conv2(L.ReLU(**with_policy)(x))
    if activation is None:
        x = L.ReLU(**with_policy)(x)
    x = L.Dropout(0.5, **with_policy)(x)
    x = (
        L.Flatten(name="flat", **with_policy)(x)
        if flat
        else L.GlobalAveragePooling2D(**with_policy)(x)
    )
    return keras.Model(image, L.Dense(2, name="head", **with_policy)(x), name="net")


def turned(value: NDArray[Any]) -> NDArray[Any]:
    """Images as PyTorch lays them out."""
    return np.ascontiguousarray(np.moveaxis(value, -1, 1)) if value.ndim == 4 else value


def source(folder: Path, *, flat: bool = False, dtype: str = "float32") -> Arrays:
    """Writes the weights of a source, and returns the entries of its reference."""
    model = net(activation=None, flat=flat, dtype=dtype)
    generator = np.random.default_rng(0)
    tensors = {}
    for variable in model.weights:
        layer, leaf = variable.path.split("/")[-2:]
        if layer not in MODULES:
            continue  # The state of the dropout.
        value = generator.uniform(0.5, 1.5, variable.shape).astype(dtype)
        value -= 0.0 if leaf == "moving_variance" else 1.0
        tensor = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T
        if layer == "head" and leaf == "kernel" and flat:
            maps = value.reshape(4, 4, 5, 2)  # Its rows: channels last, in PyTorch first.
            tensor = maps.transpose(3, 2, 0, 1).reshape(2, -1)
        variable.assign(value)
        name = f"{MODULES[layer]}.{LEAVES.get(leaf, leaf)}"
        tensors[name] = np.ascontiguousarray(tensor)
    tensors["body.1.num_batches_tracked"] = np.array(3)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    images = generator.normal(size=(2, 6, 6, 3)).astype(dtype)
    layers = [model.get_layer(layer).output for layer in MODULES]
    outputs = keras.Model(model.input, layers)(images, training=False)
    recorded = {
        f"activations/{module}": turned(np.asarray(value))
        for module, value in zip(MODULES.values(), outputs, strict=True)
    }
    metadata = json.dumps({"layout": "channels_first", "modules": SETTINGS})
    return {
        "inputs": turned(images),
        "outputs": recorded["activations/head"],
        **recorded,
        "metadata": np.array(metadata),
    }


RENAME = {f"{layer}/": f"{module}." for layer, module in MODULES.items()}


def warm_started(folder: Path, model: keras.Model, entries: Arrays, **keys: Any) -> Any:
    """Warm-starts a model by rules without a problem; returns the plan, beside a reference."""
    np.savez(folder / "reference.npz", **entries)  # type: ignore[arg-type]
    rules = {
        "variables": {"include": ["*"], "exclude": ["*seed_generator*"]},
        "checkpoint": str(folder / "model.safetensors"),
        "convert": {"*": "torch"},
        "rename": RENAME,
    }
    return runner.warm_start(model, {"cnn": {**rules, **keys}})


def proven(folder: Path, model: keras.Model, entries: Arrays, **keys: Any) -> Proof:
    """Warm-starts a model, and proves it."""
    plan = warm_started(folder, model, entries, **keys)
    return runner.prove(model, folder / "reference.npz", plan)


def test_the_right_model_passes_and_its_momentum_is_a_finding(tmp_path: Path) -> None:
    proof = proven(tmp_path, net(momentum=0.99), source(tmp_path))
    assert proof.agrees
    assert proof.outputs[0].relative < 1e-6
    assert [(c.module, c.layer) for c in proof.layers] == [(MODULES[n], n) for n in MODULES]
    assert proof.findings == (
        "momentum (of training alone): 0.9 in the source, 0.99 here (1 layer)",
    )
    assert proof.first_difference is None


def test_a_function_after_a_layer_may_be_part_of_the_module(tmp_path: Path) -> None:
    entries = source(tmp_path)
    entries["activations/body.1"] = np.maximum(entries["activations/body.1"], 0.0)
    proof = proven(tmp_path, net(), entries)
    assert [layer.agrees for layer in proof.layers] == [True] * 4


@pytest.mark.parametrize("classes", [1, 3])
def test_outputs_of_another_head_are_to_be_left_out(tmp_path: Path, classes: int) -> None:
    entries = source(tmp_path)
    entries["outputs"] = np.ones((2, classes), np.float32)
    proof = proven(tmp_path, net(), entries)
    assert proof.first_difference is None
    assert "leave outputs out where the model has another head" in str(proof)


@pytest.mark.parametrize("part", ["output", "activation"])
def test_what_lacks_the_examples_of_the_inputs_is_told(tmp_path: Path, part: str) -> None:
    entries = source(tmp_path)
    entries["inputs"] = np.concatenate([entries["inputs"]] * 4)
    entries = {name: a[0] if name.startswith(part) else a for name, a in entries.items()}
    proof = proven(tmp_path, net(), entries)
    assert not proof.agrees
    assert f"no {part} has the 8 examples of the inputs: record the whole batch" in proof.findings
    assert all("shapes differ" in output.note for output in proof.outputs)


def test_a_reference_of_other_modules_alone_proves_nothing(tmp_path: Path) -> None:
    entries = source(tmp_path)
    entries = {name.replace("activations/", "activations/x."): a for name, a in entries.items()}
    del entries["outputs"]
    entries["activations/y"] = entries.pop("activations/x.head")
    entries = {name.replace("x.body", "other"): array for name, array in entries.items()}
    proof = proven(tmp_path, net(), entries)
    assert (proof.agrees, proof.layers) == (False, ())
    assert "no module of the reference gives its tensors to one layer alone" in str(proof)


def test_a_variable_may_come_from_no_tensor(tmp_path: Path) -> None:
    entries = source(tmp_path)
    entries["activations/body.0"] = entries["activations/body.0"] + 1.0
    rules = {f"{layer}/": f"{module}." for layer, module in MODULES.items()}
    keys: dict[str, Any] = {"rename": {}, "rules": {"conv1/bias": "zeros()", **rules}}
    proof = proven(tmp_path, net(), entries, **keys)
    assert proof.first_difference is not None
    assert proof.first_difference.layer == "conv1"
    assert "bias: from no tensor (filled with 0)" in proof.findings
    assert "dropped: no variable takes body.0.bias" in proof.findings


# What is wrong -> the first layer that differs, and what is known of it.
WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "epsilon": ({"epsilon": 0.1}, "norm", "epsilon: 1e-05 in the source, 0.1 here"),
    "stride": ({"strides": 2}, "conv2", "stride: 1 in the source, 2 here"),
    "padding": ({"padding": "same"}, "conv2", "padding: 0 in the source, same here"),
    "bias": ({"bias": False}, "conv2", "dropped: no variable takes body.3.bias"),
    "activation": ({"activation": "tanh"}, "head", "kernel: from head.weight (transposed (1, 0))"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_model_fails_at_the_first_layer_that_differs(tmp_path: Path, mistake: str) -> None:
    settings, layer, finding = WRONG[mistake]
    proof = proven(tmp_path, net(**settings), source(tmp_path))
    assert not proof.agrees
    first = proof.first_difference
    assert first is not None
    assert (first.layer, first.module) == (layer, MODULES[layer])
    assert finding in proof.findings
    assert f"first layer that differs: {layer} ({MODULES[layer]})" in repr(proof)


def test_a_dense_layer_behind_a_flatten_reads_channels_first_in_the_source(tmp_path: Path) -> None:
    proof = proven(tmp_path, net(flat=True), source(tmp_path, flat=True))
    assert not proof.agrees
    assert proof.first_difference is not None
    assert proof.first_difference.layer == "head"
    (finding,) = (line for line in proof.findings if line.startswith("flatten order"))
    assert "5x4x4" in finding


def roberta(folder: Path, offset: int) -> tuple[keras.Model, Arrays]:
    """A model of token and position embeddings; the source's positions begin at row 2."""
    generator = np.random.default_rng(0)
    tokens = generator.normal(size=(7, 3)).astype(np.float32)
    positions = generator.normal(size=(6, 3)).astype(np.float32)
    tensors = {"roberta.embed.word.weight": tokens, "roberta.embed.position.weight": positions}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"layer_norm_eps": 1e-12}))

    class Positions(keras.Layer):
        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=(4, 3), name="table")

        def call(self, values: Any) -> Any:
            return self.table

    ids = keras.Input((4,), dtype="int32", name="token_ids")
    words = L.Embedding(7, 3, name="words")(ids)
    added = words + Positions(name="positions")(words)
    outputs = {"last": L.LayerNormalization(name="last")(added), "first": words}
    model = keras.Model({"token_ids": ids}, outputs, name="roberta")
    values = np.array([[1, 2, 3, 4], [6, 5, 0, 0]])
    rows = np.repeat(positions[None, offset : offset + 4], 2, axis=0)
    total = tokens[values] + rows
    mean, variance = total.mean(-1, keepdims=True), total.var(-1, keepdims=True)
    return model, {
        "inputs/token_ids": values,
        "outputs/last": (total - mean) / np.sqrt(variance + 1e-3),
        "outputs/first": tokens[values],
        "activations/embed.word": tokens[values],
        "activations/embed.position": rows[:1],
        "activations/embed": total,
        "metadata": np.array(json.dumps({"modules": {"embed.position": {"padding_idx": 1}}})),
    }


POSITIONS = {"words/embeddings": "roberta.embed.word.weight"} | {
    "positions/table": "roberta.embed.position.weight"
}


@pytest.mark.parametrize("offset", [0, 2])
def test_padded_positions_and_several_named_outputs(tmp_path: Path, offset: int) -> None:
    model, entries = roberta(tmp_path, offset)
    keys: dict[str, Any] = {"shape": "pad_or_slice", "missing": "init", "convert": {}}
    keys["variables"] = {"include": ["words/*", "positions/*"]}
    proof = proven(tmp_path, model, entries, rename=POSITIONS, **keys)
    assert {c.layer: c.agrees for c in proof.outputs} == {"first": True, "last": not offset}
    assert [c.layer for c in proof.layers] == ["words", "positions"]
    if offset:
        assert proof.first_difference is not None
        assert proof.first_difference.layer == "positions"
        assert "rows: of 6 in the source, positions begin at row 2" in proof.findings


@pytest.mark.parametrize("dtype", ["float64", "mixed_float16", "mixed_bfloat16"])
def test_the_tolerance_is_of_the_least_precise_dtype(tmp_path: Path, dtype: str) -> None:
    recorded = "float64" if dtype == "float64" else "float32"
    entries = source(tmp_path, dtype=recorded)
    proof = proven(tmp_path, net(dtype=dtype), entries)
    assert (proof.agrees, proof.dtype) == (True, dtype.removeprefix("mixed_"))
    wrong = proven(tmp_path, net(dtype=dtype, epsilon=1.0), entries)
    assert wrong.first_difference is not None
    assert wrong.first_difference.layer == "norm"
    less = entries | {name: entries[name].astype("float16") for name in entries if "/" in name}
    assert proven(tmp_path, net(dtype=dtype), less).dtype in ("float16", "bfloat16")


def test_the_tolerance_can_be_recorded(tmp_path: Path) -> None:
    entries = source(tmp_path)
    entries["outputs"] = entries["outputs"] * 1.001
    assert not proven(tmp_path, net(), entries).agrees
    entries["metadata"] = np.array(json.dumps({"layout": "channels_first", "tolerance": 0.01}))
    assert proven(tmp_path, net(), entries).agrees


def test_one_scaffold_is_proven_by_its_part_of_the_model(tmp_path: Path) -> None:
    entries = source(tmp_path)
    image = keras.Input((6, 6, 3))
    features = net()
    both = L.Concatenate()([features(image), L.Dense(3)(L.Flatten()(image))])
    model = keras.Model(image, L.Dense(1, name="top")(both))
    np.savez(tmp_path / "reference.npz", **entries)  # type: ignore[arg-type]
    cnn = {
        "variables": {"include": ["conv?/*", "norm/*", "head/*"]},
        "checkpoint": str(tmp_path / "model.safetensors"),
        "convert": {"*": "torch"},
        "rename": RENAME,
    }
    plan = runner.warm_start(model, {"cnn": cnn})
    with pytest.raises(ConfigError, match=r"there is no scaffold 'ccn'[\s\S]*choices: cnn"):
        runner.prove(model, tmp_path / "reference.npz", plan, scaffold="ccn")
    proof = runner.prove(model, tmp_path / "reference.npz", plan, scaffold="cnn")
    assert proof.agrees
    assert len(proof.layers) == 4
    # Without outputs, the whole model has the same layers; its own output is another.
    del entries["outputs"]
    np.savez(tmp_path / "reference.npz", **entries)  # type: ignore[arg-type]
    assert runner.prove(model, tmp_path / "reference.npz", plan).agrees


# Changes to a reference -> what is said.
UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "no inputs": ({"inputs": None}, "has no inputs"),
    "only inputs": (dict.fromkeys(["outputs", *MODULES.values()]), "neither outputs nor"),
    "NaN": ({"outputs": np.full((2, 2), np.nan)}, "outputs cannot be compared"),
    "no numbers": ({"outputs": np.array(["a"])}, "outputs cannot be compared"),
    "classes": ({"outputs": np.array([1, 0])}, "the model computes float32"),
    "complex numbers": (
        {"body.0": np.ones((2, 3), "c8"), "body.1": np.ones((2, 3), "c8")},
        "activations/body.0, activations/body.1 cannot be compared\n"
        "  cause: the dtype is complex64, and only real numbers are compared\n"
        "  remedy: record real numbers, such as float32, or leave it out",
    ),
    "empty": (
        {"body.0": np.zeros((0, 3))},
        "activations/body.0 cannot be compared\n  cause: there is no value",
    ),
    "both": ({"outputs/a": np.ones(2)}, "has `outputs` and `outputs/...`"),
    "unknown": ({"output": np.ones(2)}, "has an entry 'output'"),
    "size": ({"inputs": np.ones((2, 3, 5, 5))}, "inputs has the shape [2, 3, 5, 5]"),
    "input name": ({"inputs": None, "inputs/x": np.ones((2, 6, 6, 3))}, "has no inputs/x"),
    "output name": ({"outputs": None, "outputs/x": np.ones((2, 2))}, "has no outputs/x"),
    "metadata": ({"metadata": np.array("[]")}, "`metadata` is no mapping"),
    "tolerance": ({"metadata": np.array('{"tolerance": "x"}')}, "the tolerance is 'x'"),
    **{
        f"tolerance of {value}": (
            {"metadata": np.array(f'{{"tolerance": {value}}}')},
            "the tolerance is",
        )
        for value in ("1e9", "0.5", "NaN", "Infinity", "true", "-1", "null")
    },
    "layout": ({"metadata": np.array('{"layout": "NCHW"}')}, "the layout is 'NCHW'"),
    "setting": ({"metadata": np.array('{"tolerence": 0.01}')}, "`metadata` has 'tolerence'"),
    "modules": ({"metadata": np.array('{"modules": []}')}, "`modules` of the metadata is []"),
    "not JSON": ({"metadata": np.array("{")}, "is not a reference"),
}


@pytest.mark.parametrize("change", UNUSABLE)
def test_a_reference_that_cannot_be_used_is_named(tmp_path: Path, change: str) -> None:
    changes, said = UNUSABLE[change]
    changes = {
        f"activations/{k}" if k in SETTINGS or k in MODULES.values() else k: changes[k]
        for k in changes
    }
    entries = {**source(tmp_path), **changes}
    with pytest.raises(CheckpointError) as raised:
        proven(
            tmp_path, net(), {name: entries[name] for name in entries if entries[name] is not None}
        )
    assert said in str(raised.value)


def test_what_is_no_reference_or_no_model(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("text")
    np.save(tmp_path / "one.npy", np.ones(2))
    (tmp_path / "folder.npz").mkdir()
    for name, cause in {
        "text.npz": "an .npz file is a zip archive, and this is none",
        "one.npy": "an .npz file is a zip archive, and this is none",
        "missing.npz": "No such file or directory",
        "folder.npz": "Is a directory",
    }.items():
        with pytest.raises(CheckpointError, match=f"is not a reference\n  cause: {cause}"):
            runner.prove(net(), tmp_path / name)
    with pytest.raises(ConfigError, match="the model is a function"):
        runner.prove(net, tmp_path / "missing.npz")


def test_the_model_may_compute_nan(tmp_path: Path) -> None:
    entries = source(tmp_path)
    model = net()
    plan = warm_started(tmp_path, model, entries)
    model.get_layer("norm").gamma.assign(np.full(4, np.nan))
    proof = runner.prove(model, tmp_path / "reference.npz", plan)
    assert proof.first_difference is not None
    assert str(proof.first_difference) == "has a tensor with NaN"
    json.dumps(proof.document(), allow_nan=False)
