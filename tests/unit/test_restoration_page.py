"""The scaffolds in the docs are valid, and plan without a problem."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
import yaml
from numpy.typing import NDArray
from omegaconf import OmegaConf

from runner.config.choices import StateClass
from runner.config.schema import RunConfig
from runner.config.validation import validate
from runner.planning.plan import make_plan
from runner.rules.named_conversions import NAMED_CONVERSIONS
from runner.tracking import RunStore
from runner.training.run_sources import Sources
from tests.conformance.goldens import save_npz, tensors
from tests.support.configs import tiny
from tests.support.plans import slot, variable
from tests.support.torch_files import save_arrays

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ["reference/restoration.md"]
PAGES += [f"how-to/{name}.md" for name in ("average", "freeze", "pytorch", "rename", "vocabulary")]
TEXT = "".join((DOCS / page).read_text() for page in PAGES)
EXAMPLES = re.findall(r"```yaml\n(scaffolds:\n.*?)```", TEXT, re.DOTALL)
NORM = {f"cnn/norm/{each}": (4,) for each in ("gamma", "beta", "moving_mean", "moving_variance")}
SHAPES: dict[str, tuple[int, ...]] = {
    "cnn/conv/kernel": (3, 3, 2, 4),
    "cnn/conv/bias": (4,),
    **NORM,
    "embed/embeddings": (6, 3),
    "lstm/lstm_cell/kernel": (3, 16),
    "lstm/lstm_cell/recurrent_kernel": (4, 16),
    "lstm/lstm_cell/bias": (16,),
    "head/kernel": (4, 5),
    "head/bias": (5,),
}
VARIABLES = [
    *(
        replace(variable(name, shape), layer="LSTMCell" if "lstm_cell" in name else "")
        for name, shape in SHAPES.items()
    ),
    slot("cnn/conv/kernel/Momentum", (3, 3, 2, 4)),
    variable("global_step", (), "int64", StateClass.global_step, trainable=False),
]


def _floats(**shapes: tuple[int, ...]) -> dict[str, NDArray[np.float32]]:
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def _save(folder: Path, values: Mapping[str, Any]) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in values.items():
            tf.compat.v1.get_variable(name, initializer=value)
        tf.compat.v1.get_variable("global_step", initializer=np.int64(7), trainable=False)
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver()
        for step in (1000, 2000):
            saver.save(session, str(folder / "model.ckpt"), step, write_meta_graph=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints and vocabularies that the examples name."""
    folder = tmp_path_factory.mktemp("page")
    pretrained = folder / "pretrained"
    pretrained.mkdir()
    values = tensors()
    for suffix in ("Momentum", "ExponentialMovingAverage"):
        values[f"conv/kernel/{suffix}"] = values["conv/kernel"]
    _save(pretrained / "cnn", values)
    torch = {"conv.weight": (4, 2, 3, 3), "conv.bias": (4,)}
    torch |= {"lstm.weight_ih_l0": (16, 3), "lstm.weight_hh_l0": (16, 4)}
    torch |= {"lstm.bias_ih_l0": (16,), "lstm.bias_hh_l0": (16,)}
    safetensors.numpy.save_file(_floats(**torch), pretrained / "torch.safetensors")
    save_arrays(pretrained / "model.pt", _floats(**torch))
    three = _floats(**{"head/kernel": (4, 3), "head/bias": (3,)})
    save_npz(pretrained / "three_classes.npz", **three)
    five = _floats(**{"head/kernel": (4, 5), "head/bias": (5,)})
    integers = {name: value.astype(np.int64) for name, value in five.items()}
    save_npz(pretrained / "integers.npz", **integers)
    (pretrained / "old.txt").write_text("".join(f"{token}\n" for token in "abcdefg"))
    (pretrained / "new.txt").write_text("".join(f"{token}\n" for token in "gaxbyc"))
    vectors = "".join(f"{token} 1 2 3 4\n" for token in "abcdefg")
    (pretrained / "glove.6B.100d.txt").write_text(vectors)
    return folder


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_is_planned(example: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    given = OmegaConf.create(yaml.safe_load(example))
    schema = OmegaConf.structured(RunConfig(scaffolds=None))
    OmegaConf.set_struct(schema, False)
    base = OmegaConf.create({**vars(tiny()), "scaffolds": None})
    config = validate(OmegaConf.merge(schema, base, given))  # type: ignore[arg-type]
    assert list(config.scaffolds) == list(given.scaffolds)
    located = Sources(config, RunStore()).expected()
    assert located.problems == {}
    restoration = config.restoration
    variables = VARIABLES
    if "glove" in example:  # Its vectors are longer than those of the other checkpoints.
        variables = [variable("embed/embeddings", (6, 4))]
    plan = make_plan(
        variables,
        config.scaffolds,
        located,
        collision=restoration.collision,
        expect=restoration.expect,
    )
    assert not plan.problems, "\n".join(map(str, plan.problems))
    assert all(plan.restored(name) for name in config.scaffolds)


def test_every_named_conversion_is_in_the_docs() -> None:
    gates = {f"lstm_gate_{gate}" for gate in "fco"}  # Said in brackets after lstm_gate_i.
    assert [
        name for name in NAMED_CONVERSIONS if name not in gates and f"`{name}`" not in TEXT
    ] == []
