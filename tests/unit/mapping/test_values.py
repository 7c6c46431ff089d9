"""A reference decides which tensors are which variables, whatever their names say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import safetensors.numpy
from keras import layers
from numpy.typing import NDArray

import runner
from runner.errors import ConfigError
from tests.architectures.test_architectures import CASES, KEPT, difference, model_of
from tests.conformance.goldens import save_npz

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
Arrays = dict[str, NDArray[Any]]
SMALL = [
    name
    for name, case in CASES.items()
    if case.get("small")
    and not case.get("wrong")
    and (KEPT / f"{case['source']}.pt").exists()
    and "libraries" not in case
    and "lora" not in name
]
# In `make soak`; others are decided in the same ways.
LONG = ("hugging_face-llama-by_hand", "hugging_face-roberta-by_hand")


def files_of(name: str) -> tuple[Arrays, Arrays]:
    """The tensors and the reference of a case."""
    source = KEPT / f"{CASES[name]['source']}"
    with np.load(f"{source}.npz") as file:
        reference = {key: file[key] for key in file.files}
    return dict(runner.open_checkpoint(f"{source}.pt").items()), reference


def written(folder: Path, tensors: Arrays, reference: Arrays) -> tuple[Path, Path]:
    """The two as files."""
    safetensors.numpy.save_file(
        {name: np.ascontiguousarray(value) for name, value in tensors.items()},
        folder / "source.safetensors",
    )
    save_npz(folder / "reference.npz", **reference)
    return folder / "source.safetensors", folder / "reference.npz"


def assert_decided(model: keras.Model, files: tuple[Path, Path]) -> None:
    """Asserts that a map of a model is certain and right."""
    proposal = runner.propose(model, files[0], reference=files[1])
    assert [*proposal.doubts()] == []
    runner.warm_start(model, proposal.scaffolds)
    assert difference(model, files[1]) < 1e-5


def nonsense(tensors: Arrays, reference: Arrays) -> tuple[Arrays, Arrays]:
    """The same with modules called m0, m1, ..., in a random order."""

    def module(name: str) -> str:
        return name.rpartition(".")[0] if "." in name else name

    modules = [*dict.fromkeys(map(module, tensors))]
    numbers = np.random.default_rng(3).permutation(len(modules))
    new = {name: f"m{number:04}" for name, number in zip(modules, numbers, strict=True)}
    renamed = {
        f"{new[module(name)]}.{name.rpartition('.')[2]}": value for name, value in tensors.items()
    }
    activations = {
        re.sub(r"(?<=^activations/).*", lambda match: new.get(match[0], f"x.{match[0]}"), key): a
        for key, a in reference.items()
        if key != "metadata"
    }
    metadata = json.loads(str(reference["metadata"]))
    metadata.pop("modules", None)
    return renamed, {**activations, "metadata": np.array(json.dumps(metadata))}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.soak) if name in LONG else name for name in SMALL],
)
def test_names_of_nonsense_are_no_obstacle(name: str, tmp_path: Path) -> None:
    files = written(tmp_path, *nonsense(*files_of(name)))
    assert_decided(model_of(CASES[name], small=True), files)


EXCHANGES = [
    ("hugging_face-bert-by_hand", "query", "key"),
    ("hugging_face-llama-by_hand", "q_proj", "o_proj"),
    ("hugging_face-llama-by_hand", "gate_proj", "up_proj"),
    ("hugging_face-llama-by_hand", "input_layernorm", "post_attention_layernorm"),
    ("torchvision-resnet50", "layer1.0.conv2", "layer1.1.conv2"),
    ("torchvision-resnet50", "layer1.0.bn1", "layer1.0.bn2"),
]


@pytest.mark.parametrize(
    ("name", "one", "two"),
    [pytest.param(*row, marks=pytest.mark.soak) if row[0] in LONG else row for row in EXCHANGES],
)
def test_an_exchange_of_names_is_undone(name: str, one: str, two: str, tmp_path: Path) -> None:
    tensors, reference = files_of(name)

    def exchanged(text: str) -> str:
        return re.sub(rf"\b({one}|{two})\b", lambda match: {one: two, two: one}[match[0]], text)

    tensors = {exchanged(key): value for key, value in tensors.items()}
    reference = {exchanged(key): value for key, value in reference.items()}
    assert_decided(model_of(CASES[name], small=True), written(tmp_path, tensors, reference))


def of_keras(folder: Path, build: Callable[[], keras.Model], **inputs: Any) -> tuple[Path, Path]:
    """A checkpoint and a reference of a Keras model, with PyTorch's layouts and other names."""
    keras.utils.set_random_seed(7)
    model = build()
    for variable in model.variables:
        variable.assign(np.random.uniform(0.5, 1.5, variable.shape))
    tensors: Arrays = {}
    for layer in model.layers:
        for variable in layer.weights:
            leaf = {"kernel": "weight", "gamma": "weight", "beta": "bias"}
            end = leaf.get(variable.name, variable.name)
            value = variable.numpy()
            tensors[f"{layer.name}.{end}"] = value.T if variable.name == "kernel" else value
    outputs = model(inputs["x"])
    return written(folder, tensors, {"inputs": inputs["x"], "outputs": np.asarray(outputs)})


def twins(first: str, second: str) -> keras.Model:
    x = keras.Input((4,))
    one, two = layers.Dense(4, name=first)(x), layers.Dense(4, name=second)(x)
    return keras.Model(x, layers.Dense(3, name="out")(one * keras.ops.sin(two)))


def test_outputs_alone_decide_what_names_leave_open(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    source, reference = of_keras(tmp_path, lambda: twins("p", "q"), x=x)
    model = twins("left", "right")
    assert runner.propose(model, source).plan.problems
    proposal = runner.propose(model, source, reference=reference)
    assert [*proposal.doubts()] == []
    runner.warm_start(model, proposal.scaffolds)
    assert difference(model, written_metadata(reference)) < 1e-5


def written_metadata(reference: Path) -> Path:
    """The reference with the metadata that `difference` reads."""
    with np.load(reference) as file:
        arrays = {key: file[key] for key in file.files}
    np.savez(reference, **{**arrays, "metadata": json.dumps({})})
    return reference


def test_what_no_output_reads_is_said_and_stays_undecided(tmp_path: Path) -> None:
    def model_with(name: str) -> keras.Model:
        x = keras.Input((4,))
        return keras.Model(x, layers.Dense(3, name=name)(x))

    class Spare(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = layers.Dense(3, name="used"), layers.Dense(2, name="spare")
            self.built = True

        def build(self, shape: Any = None) -> None:
            self.used.build((None, 4))
            self.spare.build((None, 4))

        def call(self, x: Any) -> Any:
            return self.used(x)

    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    source, reference = of_keras(tmp_path, lambda: model_with("used"), x=x)
    model = Spare()
    model.build((None, 4))
    proposal = runner.propose(model, source, reference=reference)
    assert "No output reads: spare/kernel, spare/bias" in str(proposal)
    assert proposal.is_certain


def test_a_reference_is_of_one_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are 2 checkpoints"):
        runner.propose(twins("a", "b"), ["one.pt", "two.pt"], reference="reference.npz")


def recorded(model: keras.Model, x: Any, others: Sequence[str] = ()) -> dict[str, Any]:
    """The inputs and outputs of a model, and what its layers with weights, and others, compute."""
    inner = [layer for layer in model.layers if layer.weights or layer.name in others]
    values = keras.Model(model.input, [layer.output for layer in inner])(x)
    records = {
        f"activations/{layer.name}": np.asarray(v) for layer, v in zip(inner, values, strict=True)
    }
    return {"inputs": x, "outputs": np.asarray(model(x)), **records, "metadata": json.dumps({})}


def branched(names: str) -> keras.Model:
    """Two branches of two layers and one of one, all alike, that read one input."""
    x = keras.Input((4,))
    ends = [layers.Dense(4, name=names[1])(layers.Dense(4, "tanh", name=names[0])(x))]
    ends += [layers.Dense(4, name=names[3])(layers.Dense(4, "tanh", name=names[2])(x))]
    ends += [layers.Dense(4, "tanh", name=names[4])(x)]
    return keras.Model(x, layers.Dense(3, name="out")(layers.Concatenate()(ends)))


@pytest.mark.parametrize("names", ["vwxyz", "zyxwv", "xyzvw"])
def test_branches_that_are_alike_are_told_apart(names: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    source, _ = of_keras(tmp_path, lambda: branched(names), x=x)
    keras.utils.set_random_seed(7)
    known = branched(names)
    for variable in known.variables:
        variable.assign(np.random.uniform(0.5, 1.5, variable.shape))
    np.savez(tmp_path / "reference.npz", **recorded(known, x))
    model = branched("abcde")
    proposal = runner.propose(model, source, reference=tmp_path / "reference.npz")
    assert [*proposal.doubts()] == []
    runner.warm_start(model, proposal.scaffolds)
    assert difference(model, tmp_path / "reference.npz") < 1e-5


def attention(x: Any) -> Any:
    """Attention of two heads by plain matrices."""
    parts = [layers.Dense(6, name=name)(x) for name in ("q", "k", "v")]
    return layers.Dense(6, name="o")(two_heads(parts))


def two_heads(parts: Sequence[Any]) -> Any:
    """What two heads of attention compute of queries, keys and values of six channels."""
    q, k, v = (keras.ops.transpose(layers.Reshape((5, 2, 3))(p), (0, 2, 1, 3)) for p in parts)
    heads = keras.ops.softmax(q @ keras.ops.transpose(k, (0, 1, 3, 2))) @ v
    return layers.Reshape((5, 6))(keras.ops.transpose(heads, (0, 2, 1, 3)))


def test_interleaved_heads_of_plain_matrices_are_found(tmp_path: Path) -> None:
    keras.utils.set_random_seed(7)
    x = np.random.default_rng(0).normal(size=(3, 5, 6)).astype(np.float32)
    inputs = keras.Input((5, 6))
    model = keras.Model(inputs, attention(inputs))
    values = {v.path: np.random.uniform(-1, 1, v.shape).astype("f4") for v in model.variables}
    for variable in model.variables:
        variable.assign(values[variable.path])
    reference = recorded(model, x)

    def joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
        parts = [array.reshape(*array.shape[:-1], 2, 3) for array in arrays]
        return np.stack(parts, -2).reshape(*arrays[0].shape[:-1], 18)

    tensors = {
        "qkv.weight": joined([values[f"{name}/kernel"] for name in "qkv"]).T,
        "qkv.bias": joined([values[f"{name}/bias"] for name in "qkv"]),
        "proj.weight": values["o/kernel"].T,
        "proj.bias": values["o/bias"],
    }
    reference["activations/qkv"] = joined([reference.pop(f"activations/{n}") for n in "qkv"])
    reference["activations/proj"] = reference.pop("activations/o")
    for variable in model.variables:
        variable.assign(np.zeros(variable.shape))
    assert_decided(model, written(tmp_path, tensors, reference))


class Tanh(layers.Layer):
    """The hyperbolic tangent of a product with a square matrix."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(name="w", shape=(shape[-1], shape[-1]))

    def call(self, x: Any) -> Any:
        return keras.ops.tanh(x @ self.w)


class Scale(layers.Layer):
    """A factor for each channel."""

    def build(self, shape: Any) -> None:
        self.gamma = self.add_weight(name="gamma", shape=shape[-1:])

    def call(self, x: Any) -> Any:
        return x * self.gamma


def in_a_row() -> keras.Model:
    x = keras.Input((6,))
    hidden = layers.Dense(6, "tanh", name="b")(layers.Dense(6, "tanh", name="a")(x))
    return keras.Model(x, layers.Dense(4, name="last")(hidden))


def scaled() -> keras.Model:
    x = keras.Input((6,))
    stem = layers.Dense(6, name="stem")(x)
    inner = Scale(name="last")(Tanh(name="b")(Tanh(name="a")(stem)))
    return keras.Model(x, layers.Dense(4, name="head")(stem + inner))


def swapped(folder: Path, build: Callable[[], keras.Model], scale: float) -> tuple[Path, Path]:
    """A checkpoint in which the names of the layers `a` and `b` are exchanged."""
    keras.utils.set_random_seed(7)
    random, model = np.random.default_rng(0), build()
    for variable in model.variables:
        factor = scale if variable.path in ("last/kernel", "last/gamma") else 0.4
        variable.assign(factor * random.normal(size=variable.shape))
    x = random.normal(size=(5, 6)).astype(np.float32)
    reference = recorded(model, x)
    is_inner = build is scaled
    reference = {
        key: value
        for key, value in reference.items()
        if "activations" not in key or (is_inner and key.endswith(("/stem", "/head")))
    }
    tensors: Arrays = {}
    for variable in model.variables:
        layer, _, leaf = variable.path.partition("/")
        name = f"{ {'a': 'b', 'b': 'a'}.get(layer, layer) }.{leaf.replace('kernel', 'weight')}"
        value = variable.numpy()
        tensors[name] = value.T if leaf == "kernel" else value
    return written(folder, tensors, reference)


@pytest.mark.parametrize(
    ("build", "scale"),
    [
        (in_a_row, 0.0),
        (in_a_row, 3e-6),
        (scaled, 1e-5),
        (scaled, 3e-6),
        (scaled, 1e-6),
        (scaled, 0.0),
    ],
)
def test_what_records_hardly_show_is_not_certain(
    build: Callable[[], keras.Model], scale: float, tmp_path: Path
) -> None:
    source, reference = swapped(tmp_path, build, scale)
    model = build()
    proposal = runner.propose(model, source, reference=reference)
    assert not proposal.is_certain
    (correspondence,) = proposal.correspondences.values()
    undecided = correspondence.undecided or ()
    assert {"a", "b"} <= {name.partition("/")[0] for name in undecided}
    # They are listed, with a rule or without.
    assert all(name in str(proposal).partition("Not decided")[2] for name in undecided)


class Additive(layers.Layer):
    """Additive attention of the last step, by four parameters."""

    def build(self, shape: Any) -> None:
        size = shape[-1]
        self.one, self.two = (
            self.add_weight(name=name, shape=(size, size)) for name in ("one", "two")
        )
        self.shift, self.score = (
            self.add_weight(name=name, shape=(size,)) for name in ("shift", "score")
        )

    def call(self, x: Any) -> Any:
        sums = x[:, -1:] @ self.one + x @ self.two + self.shift
        weights = keras.ops.softmax(keras.ops.tanh(sums) @ self.score[:, None], axis=1)
        return keras.ops.sum(weights * x, axis=1)


def attended() -> keras.Model:
    x = keras.Input((5, 6))
    context = Additive(name="attention")(layers.Dense(6, "tanh", name="a")(x))
    return keras.Model(x, layers.Dense(6, name="b")(context))


def pooled() -> keras.Model:
    """Two residual blocks, each with two factors."""
    y = x = keras.Input((5, 6))
    for at in range(2):
        inner = layers.LayerNormalization(epsilon=1e-5, name=f"{at}_norm1")(y)
        y = layers.Add()([y, Scale(name=f"{at}_scale1")(layers.AveragePooling1D(1)(inner))])
        inner = layers.LayerNormalization(epsilon=1e-5, name=f"{at}_norm2")(y)
        inner = layers.Dense(6, "tanh", name=f"{at}_fc")(inner)
        y = layers.Add(name=f"block{at}")([y, Scale(name=f"{at}_scale2")(inner)])
    return keras.Model(x, layers.Dense(3, name="head")(layers.Flatten()(y)))


class Tokens(layers.Layer):
    """Two tokens before a sequence, and positions."""

    def build(self, shape: Any) -> None:
        self.one, self.two = (
            self.add_weight(name=name, shape=(1, 1, shape[-1])) for name in ("one", "two")
        )
        self.rows = self.add_weight(name="rows", shape=(1, shape[1] + 2, shape[-1]))

    def call(self, x: Any) -> Any:
        both = keras.ops.concatenate([self.one, self.two], 1)
        both = keras.ops.broadcast_to(both, (keras.ops.shape(x)[0], 2, x.shape[-1]))
        return keras.ops.concatenate([both, x], 1) + self.rows


def distilled() -> keras.Model:
    x = keras.Input((5, 6))
    y = Tokens(name="tokens")(layers.Dense(6, name="patch")(x))
    y = layers.LayerNormalization(epsilon=1e-5, name="norm")(y)
    ends = [layers.Dense(3, name=name)(y[:, at]) for at, name in enumerate(("head", "head_dist"))]
    return keras.Model(x, ends[0] + ends[1])


class Mixes(layers.Layer):
    """Four mixtures with the step before, by a factor each."""

    def build(self, shape: Any) -> None:
        self.factors = [self.add_weight(name=n, shape=shape[-1:]) for n in ("i", "j", "k", "l")]

    def call(self, x: Any) -> Any:
        before = keras.ops.roll(x, 1, axis=1)
        return [x * factor + before * (1 - factor) for factor in self.factors]


def mixed() -> keras.Model:
    """Two blocks of layers that read one mixture each."""
    y = x = keras.Input((5, 6))
    for at in range(2):
        parts = zip("pqrs", range(5, 1, -1), Mixes(name=f"{at}_mixes")(y), strict=True)
        ends = [layers.Dense(size, "tanh", name=f"{at}_{name}")(z) for name, size, z in parts]
        y = y + layers.Dense(6, name=f"{at}_o")(layers.Concatenate()(ends))
    return keras.Model(x, layers.Dense(3, name="head")(layers.Flatten()(y)))


class Attention(layers.Layer):
    """Attention by four square parameters."""

    def build(self, shape: Any) -> None:
        for name in ("query", "key", "value", "output_kernel"):
            setattr(self, name, self.add_weight(name=name, shape=(shape[-1], shape[-1])))

    def call(self, x: Any) -> Any:
        scores = (x @ self.query) @ keras.ops.transpose(x @ self.key, (0, 2, 1))
        return keras.ops.softmax(scores) @ (x @ self.value) @ self.output_kernel


def attending(epsilon: float = 1e-5) -> keras.Model:
    x = keras.Input((5, 6))
    y = layers.Dense(6, name="stem")(x)
    y = layers.LayerNormalization(epsilon=epsilon, name="norm")(y + Attention(name="attention")(y))
    return keras.Model(x, layers.Dense(3, name="head")(y))


# Model -> the names of its tensors in the source, and what modules computed beside its layers.
BARE: list[tuple[Callable[[], keras.Model], dict[str, str], dict[str, str]]] = [
    (attended, {"attention/one": "m2.p3", "attention/two": "m2.p1", "attention/shift": "m2.p0",
                "attention/score": "m2.p2", "a": "m7", "b": "m5"}, {}),
    (attended, {"attention/one": "W_k", "attention/two": "W_q", "attention/shift": "v",
                "attention/score": "b", "a": "linear", "b": "out"}, {}),
    # The names of the two tokens are exchanged.
    (distilled, {"tokens/one": "dist_token", "tokens/two": "cls_token", "tokens/rows": "pos_embed",
                 "patch": "patch", "norm": "norm", "head": "head", "head_dist": "head_dist"}, {}),
    # The names of two mixes are exchanged.
    (mixed, {f"{at}_{ours}": f"{at}.{theirs}" for at in range(2) for ours, theirs in
             (("mixes/i", "mix.i"), ("mixes/j", "mix.j"), ("mixes/k", "mix.l"),
              ("mixes/l", "mix.k"), *zip("pqrso", "pqrso", strict=True))} | {"head": "head"}, {}),
    (pooled, {f"{at}_{layer}": f"blocks.{at}.{name}" for at in range(2) for layer, name in
              (("norm1", "norm1"), ("norm2", "norm2"), ("fc", "fc"), ("scale1/gamma", "scale_1"),
               ("scale2/gamma", "scale_2"))} | {"head": "head"},
     {"block0": "blocks.0", "block1": "blocks.1"}),
    (pooled, {"0_norm1": "m4", "0_norm2": "m9", "0_fc": "m1", "1_norm1": "m8", "1_norm2": "m0",
              "1_fc": "m7", "head": "m2", "0_scale1/gamma": "m6.p1", "0_scale2/gamma": "m6.p0",
              "1_scale1/gamma": "m3.p0", "1_scale2/gamma": "m3.p1"},
     {"block0": "m6", "block1": "m3"}),
    # Its four parameters do not lie as the kernels of the file's layers do.
    (attending, {"attention/query": "attn.wq", "attention/key": "attn.wk", "attention/value":
                 "attn.wv", "attention/output_kernel": "attn.wo", "stem": "stem", "norm": "norm",
                 "head": "head"}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("build", "names", "containers"), BARE)
def test_parameters_without_a_record_are_decided_by_what_reads_them(
    build: Callable[[], keras.Model],
    names: dict[str, str],
    containers: dict[str, str],
    tmp_path: Path,
) -> None:
    random, model = np.random.default_rng(0), build()
    tensors: Arrays = {}
    for variable in model.variables:
        variable.assign(random.uniform(-1, 1, variable.shape))
        layer, _, leaf = variable.path.partition("/")
        end = {"kernel": "weight", "gamma": "weight", "beta": "bias"}.get(leaf, leaf)
        name = names.get(variable.path) or f"{names[layer]}.{end}"
        value = variable.numpy()
        tensors[name] = value.T if leaf == "kernel" else value
    x = random.normal(size=(4, 5, 6)).astype(np.float32)
    reference = recorded(model, x, [*containers])
    spelled = {**names, **containers}
    reference = {
        key if "/" not in key else f"activations/{spelled[key.partition('/')[2]]}": value
        for key, value in reference.items()
        if "/" not in key or key.partition("/")[2] in spelled
    }
    tensors = dict(sorted(tensors.items()))
    assert_decided(build(), written(tmp_path, tensors, reference))


def levels() -> keras.Model:
    """Two branches alike, which read the smaller map first; some layers are of one map alone."""
    x = keras.Input((4, 6))
    stem = layers.Dense(6, "tanh", name="stem")(x)
    ends = []
    for name in "ab":
        first, last = (layers.Dense(6, "tanh", name=f"{name}_{end}") for end in ("in", "out"))
        maps = [
            last(layers.Dense(6, "tanh", name=f"{name}_{size}")(first(y)))
            for size, y in (("small", stem[:, ::2]), ("large", stem))
        ]
        ends.append(keras.ops.concatenate(maps, 1))
    return keras.Model(x, layers.Concatenate()(ends))


def test_the_recorded_call_of_a_layer_may_be_a_later_one(tmp_path: Path) -> None:
    random, model = np.random.default_rng(0), levels()
    for variable in model.variables:
        variable.assign(random.uniform(-1, 1, variable.shape))
    x = random.normal(size=(3, 4, 6)).astype(np.float32)
    records: Arrays = {}
    numbers = iter((4, 7, 2, 8, 6, 3, 1, 5, 0))
    tensors: Arrays = {}

    def call(name: str, y: Any) -> Any:
        layer, spelled = model.get_layer(name), f"m{next(numbers)}"
        kernel, bias = (variable.numpy() for variable in layer.weights)
        tensors.update({f"{spelled}.weight": kernel.T, f"{spelled}.bias": bias})
        records[f"activations/{spelled}"] = np.asarray(layer(y))
        return layer(y)

    stem = call("stem", x)
    for name in "ba":
        large = call(f"{name}_in", stem)
        call(f"{name}_out", call(f"{name}_large", large))
        call(f"{name}_small", model.get_layer(f"{name}_in")(stem[:, ::2]))
    reference = {"inputs": x, "outputs": np.asarray(model(x)), "metadata": np.array("{}")}
    tensors = dict(sorted(tensors.items()))
    assert_decided(levels(), written(tmp_path, tensors, reference | records))


def translated(*names: str) -> keras.Model:
    """An encoder whose state begins a decoder."""
    source, target = keras.Input((5,), dtype="int32"), keras.Input((4,), dtype="int32")
    words, others = (layers.Embedding(9, 6, name=name) for name in names[:2])
    rows, state = layers.GRU(6, return_sequences=True, return_state=True, name=names[2])(
        words(source)
    )
    decoder = layers.GRU(6, return_sequences=True, name=names[3])
    steps = decoder(others(target), initial_state=state)
    scores = steps @ keras.ops.transpose(rows, (0, 2, 1))
    context = keras.ops.softmax(scores) @ rows
    joined = layers.Concatenate()([steps, context])
    return keras.Model([source, target], layers.Dense(3, name=names[4])(joined))


def test_a_layer_that_hands_on_states_beside_its_record_is_decided(tmp_path: Path) -> None:
    random, known = np.random.default_rng(0), translated("e", "f", "g", "h", "i")
    for variable in known.variables:
        variable.assign(random.uniform(-1, 1, variable.shape))
    x = [random.integers(0, 9, (3, size)) for size in (5, 4)]
    inner = [layer for layer in known.layers if layer.weights]
    outputs = [keras.tree.flatten(layer.output)[0] for layer in inner]
    values = keras.Model(known.input, outputs)(x)
    save_npz(
        tmp_path / "r.npz",
        outputs=np.asarray(known(x)),
        **{f"inputs/{at}": value for at, value in enumerate(x)},
        **{
            f"activations/{layer.name}": np.asarray(v)
            for layer, v in zip(inner, values, strict=True)
        },
    )
    np.savez(tmp_path / "w.npz", **{v.path: v.numpy() for v in known.variables})
    model = translated("v", "w", "x", "y", "z")
    proposal = runner.propose(model, tmp_path / "w.npz", reference=tmp_path / "r.npz")
    assert [*proposal.doubts()] == []
    runner.warm_start(model, proposal.scaffolds)
    for variable, value in zip(model.weights, known.weights, strict=True):
        if "seed" not in value.path:
            np.testing.assert_array_equal(variable, value)


def gated() -> keras.Model:
    x = keras.Input((5, 6))
    gate = layers.Dense(6, "sigmoid", name="gate")(x)
    y = layers.Conv1D(6, 6, padding="same", name="conv")(gate * layers.Dense(6, name="value")(x))
    return keras.Model(x, layers.Dense(3, name="head")(y))


@pytest.mark.parametrize(("conv", "norm"), [("conv", "conv.parametrizations.weight"), ("m3", "m0")])
def test_a_convolution_of_two_layers_and_one_of_weight_norm_are_found(
    conv: str, norm: str, tmp_path: Path
) -> None:
    """The convolution computes channels first; the kernel of the other one fits in every order."""
    random, known = np.random.default_rng(0), gated()
    for variable in known.variables:
        variable.assign(random.uniform(-1, 1, variable.shape))
    x = random.normal(size=(4, 5, 6)).astype(np.float32)
    reference, values = recorded(known, x), {v.path: v.numpy() for v in known.variables}
    direction = values["conv/kernel"].transpose(2, 1, 0)
    length = np.sqrt((direction**2).sum((1, 2), keepdims=True))
    tensors = {
        "glu.weight": np.concatenate([values[f"{n}/kernel"].T for n in ("value", "gate")])[
            ..., None
        ],
        "glu.bias": np.concatenate([values[f"{n}/bias"] for n in ("value", "gate")]),
        f"{norm}.original0": length,
        f"{norm}.original1": 2 * direction,
        f"{conv}.bias": values["conv/bias"],
        "head.weight": values["head/kernel"].T,
        "head.bias": values["head/bias"],
    }
    before = x @ values["gate/kernel"] + values["gate/bias"]
    parts = [reference.pop("activations/value"), before]
    del reference["activations/gate"]
    glu = {"activations/glu": np.concatenate(parts, -1).transpose(0, 2, 1)}
    reference[f"activations/{conv}"] = reference.pop("activations/conv")
    order = ["inputs", "outputs", f"activations/{conv}", "activations/head", "metadata"]
    reference = glu | {key: reference[key] for key in order}
    assert_decided(gated(), written(tmp_path, tensors, reference))
