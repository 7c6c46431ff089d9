"""Whole architectures start from PyTorch's weights, and compute what PyTorch computed.

Each NAME.yaml here is a pair of a source, a function of `sources/`, and a Keras model, a function
of `models/`, with the rules between them. Small ones lie in `small/`, as `record.py` wrote them;
`make soak` writes the whole ones, in which `TORCH_PYTHON` names a Python that has PyTorch.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

import runner

HERE = Path(__file__).parent
PYTHON = os.environ.get("TORCH_PYTHON", sys.executable)
CASES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(HERE.glob("*.yaml"))}
WRONG = [name for name, case in CASES.items() if case.get("wrong")]
SMALL = [name for name, case in CASES.items() if case.get("small") and name not in WRONG]
WHOLE = [name for name, case in CASES.items() if case.get("whole", True)]
# Keras saves variables by way of np.array, of which NumPy 2 warns.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def model_of(case: dict[str, Any], *, small: bool) -> keras.Model:
    for library in case.get("libraries", ()):
        pytest.importorskip(library)
    module, function = case["model"].split(".")
    models = importlib.import_module(f"tests.architectures.models.{module}")
    keras.utils.set_random_seed(1)
    model: keras.Model = getattr(models, function)(small)
    return model


def scaffolds_of(case: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
    scaffolds: dict[str, Any] = copy.deepcopy(case["scaffolds"])
    for scaffold in scaffolds.values():
        scaffold["checkpoint"] = str(checkpoint)
    return scaffolds


def entries(reference: Any, kind: str, *, to_keras: bool) -> Any:
    """The only array of a kind, or several by name, with the channels where Keras has them."""

    def laid_out(array: NDArray[Any]) -> NDArray[Any]:
        return np.moveaxis(array, 1, -1) if to_keras and array.ndim > 2 else array

    if kind in reference:
        return laid_out(reference[kind])
    names = [key for key in reference.files if key.startswith(f"{kind}/")]
    return {name.partition("/")[2]: laid_out(reference[name]) for name in names}


def difference(model: keras.Model, reference_file: Path) -> float:
    """How far the model's outputs are from the recorded ones, relative to the largest of these."""
    with np.load(reference_file) as reference:
        to_keras = json.loads(str(reference["metadata"])).get("layout") == "channels_first"
        inputs = entries(reference, "inputs", to_keras=to_keras)
        expected = entries(reference, "outputs", to_keras=to_keras)
    outputs = model(inputs, training=False)
    pairs = (
        [(outputs[name], expected[name]) for name in expected]
        if isinstance(expected, dict)
        else [(outputs, expected)]
    )
    for output, array in pairs:
        assert output.shape == array.shape
    return max(float(np.max(np.abs(o - a)) / np.max(np.abs(a))) for o, a in pairs)


def check(case: dict[str, Any], model: keras.Model, checkpoint: Path) -> runner.WarmStartPlan:
    """Starts a model from a checkpoint: every variable, and the recorded outputs."""
    scaffolds = scaffolds_of(case, checkpoint)
    (scaffold,) = scaffolds.values()
    assert len(scaffold["rules"]) <= 30
    plan = runner.warm_start(model, scaffolds)
    initialised = [entry.variable.full_name for entry in plan.assignments if not entry.pieces]
    excluded = scaffold["variables"].get("exclude", [])
    assert [name for name in initialised if not any(fnmatch(name, glob) for glob in excluded)] == []
    reference = checkpoint.with_suffix(".npz")
    assert difference(model, reference) < 1e-5
    assert runner.prove(model, reference).agrees
    return plan


@pytest.mark.parametrize("name", SMALL)
def test_small_architectures(name: str) -> None:
    case = CASES[name]
    check(case, model_of(case, small=True), HERE / "small" / f"{case['source']}.pt")


@pytest.mark.parametrize("name", WRONG)
def test_the_proof_names_the_first_layer_of_a_wrong_start(name: str) -> None:
    case = CASES[name]
    model = model_of(case, small=True)
    checkpoint = HERE / "small" / f"{case['source']}.pt"
    runner.warm_start(model, scaffolds_of(case, checkpoint))
    proof = runner.prove(model, checkpoint.with_suffix(".npz"))
    assert not proof.agrees
    assert proof.first_difference is not None
    first = {"layer": proof.first_difference.layer, "module": proof.first_difference.module}
    assert first == case["wrong"]


def record(folder: Path, *arguments: str) -> None:
    """Runs `record.py` in PyTorch's Python; skips the test where a library is missing."""
    command = [PYTHON, str(HERE / "record.py"), str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip(f"{PYTHON} has not all libraries: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr


@pytest.mark.soak
@pytest.mark.parametrize("name", WHOLE)
def test_whole_architectures(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = model_of(case, small=False)
    record(tmp_path, case["source"])
    for form in ("pt", "safetensors"):
        check(case, model, tmp_path / f"{case['source']}.{form}")
        for variable in model.variables:
            variable.assign(np.zeros(variable.shape, variable.dtype))


@pytest.mark.soak
@pytest.mark.parametrize("name", SMALL)
def test_small_architectures_of_the_installed_pytorch(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    record(tmp_path, "--small", case["source"])
    for form in ("pt", "safetensors"):
        check(case, model_of(case, small=True), tmp_path / f"{case['source']}.{form}")
