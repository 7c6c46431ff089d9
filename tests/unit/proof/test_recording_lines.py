"""The lines of the how-to that record a reference, as a reader would paste them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow.compat.v1 as tf

import runner
from runner.planning.comparison import Proof

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "how-to" / "prove.md").read_text()
PYTORCH, TENSORFLOW_1, KERAS_2 = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[:3]
FLAX = ROOT / "tests" / "data" / "flax_network"
L = keras.layers


def run_lines(lines: str, folder: Path, **names: Any) -> str:
    """Runs lines in a folder, and returns the path of the reference."""
    file = folder / "record.py"
    file.write_text(lines.replace('"reference.npz"', f'r"{folder}/reference.npz"'))
    runpy.run_path(str(file), names)
    return str(folder / "reference.npz")


def net(epsilon: float) -> keras.Model:
    layers = [
        keras.Input((6, 6, 3)),
        L.Conv2D(4, 3, name="conv"),
        L.BatchNormalization(epsilon=epsilon, name="norm"),
        L.GlobalAveragePooling2D(),
        L.Dense(2, name="logits"),
    ]
    return keras.Sequential(layers, name="net")


def proof_of(epsilon: float, scaffold: dict[str, Any], reference: str) -> Proof:
    model = net(epsilon)
    plan = runner.warm_start(model, {"net": {"variables": {"include": ["*"]}, **scaffold}})
    return runner.prove(model, reference, plan)


def test_the_lines_for_tensorflow_1(tmp_path: Path) -> None:
    def variable(name: str, *shape: int) -> Any:
        return tf.get_variable(name, shape, initializer=tf.random_uniform_initializer(0.5, 1.5))

    with tf.Graph().as_default(), tf.Session() as session:
        images = tf.placeholder(tf.float32, [None, 6, 6, 3])
        with tf.variable_scope("net/conv"):
            x = tf.nn.conv2d(images, variable("kernel", 3, 3, 3, 4), 1, "VALID")
            x = tf.nn.bias_add(x, variable("bias", 4))
        with tf.variable_scope("net/norm"):
            names = ("gamma", "beta", "moving_mean", "moving_variance")
            values = [variable(name, 4) for name in names]
            x, _, _ = tf.nn.fused_batch_norm(x, *values, epsilon=0.01, is_training=False)
        x = tf.reduce_mean(x, [1, 2])
        with tf.variable_scope("net/logits"):
            logits = tf.nn.bias_add(x @ variable("kernel", 4, 2), variable("bias", 2))
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
        batch = np.random.default_rng(0).normal(size=(2, 6, 6, 3)).astype(np.float32)
        reference = run_lines(
            TENSORFLOW_1, tmp_path, session=session, images=images, batch=batch, logits=logits
        )
    scaffold = {"checkpoint": str(tmp_path), "rename": {"re:(.*)": "net/\\1"}}
    proof = proof_of(0.01, scaffold, reference)
    assert proof.agrees
    assert [layer.layer for layer in proof.layers] == ["conv", "norm", "logits"]
    proposal = runner.propose(net(0.01), tmp_path, reference=reference)
    assert [*proposal.doubts()] == []
    wrong = proof_of(0.5, scaffold, reference)
    assert wrong.first_difference is not None
    assert wrong.first_difference.module == "net/norm"
    assert "epsilon: 0.01 in the source, 0.5 here" in wrong.findings


def of_another(names: dict[str, str], epsilon: float = 0.01) -> keras.Model:
    """The model under other names, as one that is written anew."""
    layers = [
        keras.Input((6, 6, 3)),
        L.Conv2D(4, 3, name=names["conv"]),
        L.BatchNormalization(epsilon=epsilon, name=names["norm"]),
        L.Reshape((16, 4)),
        L.LSTM(3, name=names["rnn"]),
        L.Dense(2, name=names["logits"]),
    ]
    return keras.Sequential(layers, name="another")


def test_the_lines_for_keras_2(tmp_path: Path) -> None:
    source: Any = pytest.importorskip("tf_keras")
    nested = source.Sequential(
        [
            source.layers.Conv2D(4, 3, name="m4"),
            source.layers.BatchNormalization(epsilon=0.01, name="m2"),
        ],
        name="m0",
    )
    images = source.Input((6, 6, 3))
    hidden = source.layers.Reshape((16, 4))(nested(images))
    hidden = source.layers.LSTM(3, name="m1")(hidden)
    model = source.Model(images, source.layers.Dense(2, name="m3")(hidden))
    for variable in model.weights:
        variable.assign(np.random.default_rng(0).uniform(0.5, 1.5, variable.shape))
    model.save_weights(str(tmp_path / "model.h5"))
    batch = np.random.default_rng(0).normal(size=(2, 6, 6, 3)).astype(np.float32)
    reference = run_lines(KERAS_2, tmp_path, model=model, images=batch)
    names = {"conv": "a", "norm": "b", "rnn": "c", "logits": "d"}
    proposal = runner.propose(of_another(names), tmp_path / "model.h5", reference=reference)
    assert [*proposal.doubts()] == []
    assert proposal.proof is not None
    assert proposal.proof.agrees
    wrong = runner.propose(of_another(names, 0.5), tmp_path / "model.h5", reference=reference)
    assert "epsilon: 0.01 in the source, 0.5 here" in str(wrong.proof)


def attention_network() -> keras.Model:
    images = keras.Input((6, 6, 3))
    x = L.BatchNormalization(epsilon=1e-5, name="a_norm")(L.Conv2D(8, 3, name="a")(images))
    x = L.Conv2D(8, 3, padding="same", use_bias=False, name="b")(L.ReLU()(x))
    x = L.Reshape((16, 8))(L.BatchNormalization(epsilon=1e-5, name="b_norm")(x))
    for name in ("c", "d"):
        hidden = L.LayerNormalization(epsilon=1e-5, name=f"{name}_first")(x)
        x += L.MultiHeadAttention(2, 4, name=f"{name}_heads")(hidden, hidden)
        hidden = L.LayerNormalization(epsilon=1e-5, name=f"{name}_second")(x)
        x += L.Dense(8, name=f"{name}_out")(L.Dense(16, "gelu", name=f"{name}_in")(hidden))
    return keras.Model(images, L.Dense(3, name="e")(keras.ops.mean(x, 1)))


def test_what_the_lines_for_flax_have_recorded() -> None:
    """`make.py` beside the file runs them."""
    model = attention_network()
    proposal = runner.propose(model, FLAX / "network.msgpack", reference=FLAX / "reference.npz")
    assert [*proposal.doubts()] == []
    assert proposal.proof is not None
    assert {"a_norm", "c_heads/query", "d_in"} <= {one.layer for one in proposal.proof.layers}


@pytest.mark.soak
def test_the_lines_for_pytorch(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch")
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 2),
    )
    tensors = {name: value.numpy() for name, value in model.state_dict().items()}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    reference = run_lines(PYTORCH, tmp_path, model=model, images=torch.randn(2, 3, 6, 6))
    scaffold = {
        "checkpoint": str(tmp_path / "model.safetensors"),
        "rename": {"conv/": "0.", "norm/": "1.", "logits/": "4."},
        "convert": {"*": "torch"},
    }
    proof = proof_of(1e-5, scaffold, reference)
    assert proof.agrees
    assert [layer.module for layer in proof.layers] == ["0", "1", "4"]
    assert not proof_of(0.5, scaffold, reference).agrees
