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
PYTORCH, TENSORFLOW_1 = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[:2]
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
    wrong = proof_of(0.5, scaffold, reference)
    assert wrong.first_difference is not None
    assert wrong.first_difference.module == "net/norm"
    assert "epsilon: 0.01 in the source, 0.5 here" in wrong.findings


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
