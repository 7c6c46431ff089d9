"""Whole architectures start from PyTorch's weights, and compute what PyTorch computed.

Each NAME.yaml here is a pair of a source, a function of `sources/`, and a Keras model, a function
of `models/`, with the rules between them. Small ones lie in `small/`, as `record.py` wrote them;
`make soak` writes the whole ones, in which `TORCH_PYTHON` names a Python that has PyTorch.
"""

from __future__ import annotations

import ast
import copy
import importlib
import json
import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import safetensors.numpy
import yaml
from numpy.typing import NDArray

import runner
from runner.planning.model_variables import eager_variables

HERE = Path(__file__).parent
KEPT = HERE / "small"
FORMS = ("pt", "safetensors")
PYTHON = os.environ.get("TORCH_PYTHON", sys.executable)
CASES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(HERE.glob("*.yaml"))}
WRONG = [name for name, case in CASES.items() if case.get("wrong")]
SMALL = [name for name, case in CASES.items() if case.get("small") and name not in WRONG]
WHOLE = [name for name, case in CASES.items() if case.get("whole", True)]
ON_THE_PAGE = ["torchvision-resnet50-hub", "hugging_face-gpt2", "pytorch-bidirectional_lstm"]
# Keras saves variables by way of np.array, of which NumPy 2 warns.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def model_of(case: dict[str, Any], *, small: bool) -> keras.Model:
    for library in case.get("libraries", ()):
        pytest.importorskip(library)
    module, function = case["model"].split(".")
    models = importlib.import_module(f"tests.architectures.models.{module}")
    keras.utils.clear_session()  # Names that Keras counts up start over.
    keras.utils.set_random_seed(1)
    model: keras.Model = getattr(models, function)(small)
    return model


def checkpoint_of(case: dict[str, Any], folder: Path, form: str = "") -> str:
    """A checkpoint of the case, of the form or of the first."""
    return str(folder / f"{case['source']}.{form or case.get('files', FORMS)[0]}")


def scaffolds_of(case: dict[str, Any], checkpoint: str) -> dict[str, Any]:
    scaffolds: dict[str, Any] = copy.deepcopy(case["scaffolds"])
    for scaffold in scaffolds.values():
        scaffold["checkpoint"] = checkpoint
    return scaffolds


def entries(reference: Any, kind: str, *, to_keras: bool) -> Any:
    """The only array of a kind, or several by name, with the channels where Keras has them."""

    def laid_out(array: NDArray[Any]) -> NDArray[Any]:
        return np.moveaxis(array, 1, -1) if to_keras and array.ndim > 3 else array

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


def check(
    case: dict[str, Any], model: keras.Model, checkpoint: str, reference: Path
) -> runner.WarmStartPlan:
    """Starts a model from a checkpoint: every variable, and the recorded outputs."""
    scaffolds = scaffolds_of(case, checkpoint)
    (scaffold,) = scaffolds.values()
    assert len(scaffold["rules"]) <= 30
    plan = runner.warm_start(model, scaffolds)
    initialised = [
        entry.variable.full_name for entry in plan.assignments if not entry.source_tensor
    ]
    excluded = [*scaffold["variables"].get("exclude", []), "*seed_generator_state"]
    assert [name for name in initialised if not any(fnmatch(name, glob) for glob in excluded)] == []
    assert difference(model, reference) < 1e-5
    assert runner.prove(model, reference, plan).agrees
    return plan


def check_inverse(
    case: dict[str, Any], model: keras.Model, plan: runner.WarmStartPlan, *, files: tuple[str, Path]
) -> None:
    """Turns values back: the source's own bit for bit, and others so that they return."""
    checkpoint, exported = files
    safetensors.numpy.save_file(plan.invert(model), exported)
    tensors = runner.open_checkpoint(str(exported))
    for name, array in runner.open_checkpoint(checkpoint).items():
        assert (tensors[name].shape, tensors[name].tobytes()) == (array.shape, array.tobytes()), (
            name
        )
    random = np.random.default_rng(0)
    trained = {
        entry.variable.name: random.uniform(0.5, 1.5, entry.variable.full_shape).astype(np.float32)
        for entry in plan.assignments
        if entry.source_tensor and entry.source_tensor.names
    }
    safetensors.numpy.save_file(plan.invert(trained), exported)
    runner.warm_start(model, scaffolds_of(case, str(exported)))
    variables = eager_variables(model)
    for name, value in trained.items():
        np.testing.assert_allclose(variables[name].numpy(), value, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", SMALL)
def test_small_architectures(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model, checkpoint = model_of(case, small=True), checkpoint_of(case, KEPT)
    plan = check(case, model, checkpoint, KEPT / f"{case['source']}.npz")
    if case.get("inverse", True):
        files = checkpoint, tmp_path / "exported.safetensors"
        check_inverse(case, model, plan, files=files)


@pytest.mark.parametrize("name", WRONG)
def test_the_proof_names_the_first_layer_of_a_wrong_start(name: str) -> None:
    case = CASES[name]
    model = model_of(case, small=True)
    plan = runner.warm_start(model, scaffolds_of(case, checkpoint_of(case, KEPT)))
    proof = runner.prove(model, KEPT / f"{case['source']}.npz", plan)
    assert not proof.agrees
    assert proof.first_difference is not None
    first = {"layer": proof.first_difference.layer, "module": proof.first_difference.module}
    assert first == case["wrong"]


@pytest.mark.parametrize("name", CASES)
def test_configurations_name_functions(name: str) -> None:
    for folder, key in (("sources", "source"), ("models", "model")):
        module, function = CASES[name][key].split(".")
        tree = ast.parse((HERE / folder / f"{module}.py").read_text())
        names = {getattr(node, "name", "") for node in tree.body}
        for node in tree.body:
            names |= {
                name.id for name in getattr(node, "targets", ()) if isinstance(name, ast.Name)
            }
        assert function in names


def test_the_page_shows_rules_that_hold() -> None:
    page = (HERE.parents[1] / "docs" / "how-to" / "architectures.md").read_text()
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    shown = [block["scaffolds"] for block in blocks]
    for scaffolds in shown:
        for scaffold in scaffolds.values():
            del scaffold["checkpoint"]
    assert shown == [CASES[name]["scaffolds"] for name in ON_THE_PAGE]


def record(folder: Path, *arguments: str) -> None:
    """Runs `record.py` in PyTorch's Python; skips the test where a library is missing."""
    command = [PYTHON, str(HERE / "record.py"), str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip(f"{PYTHON} has not all libraries: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr


@pytest.mark.soak
@pytest.mark.timeout(1800)  # VGG16 has 550 MB, of which each file is read and written twice.
@pytest.mark.parametrize("name", WHOLE)
def test_whole_architectures(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    record(tmp_path, case["source"])
    for form in case.get("files", FORMS):
        model = model_of(case, small=False)
        checkpoint = checkpoint_of(case, tmp_path, form)
        plan = check(case, model, checkpoint, tmp_path / f"{case['source']}.npz")
        if case.get("inverse", True):
            files = checkpoint, tmp_path / "exported.safetensors"
            check_inverse(case, model, plan, files=files)


@pytest.mark.soak
@pytest.mark.parametrize("name", SMALL)
def test_small_architectures_of_the_installed_pytorch(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    record(tmp_path, "--small", case["source"])
    for form in case.get("files", FORMS):
        checkpoint = checkpoint_of(case, tmp_path, form)
        check(case, model_of(case, small=True), checkpoint, tmp_path / f"{case['source']}.npz")


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in SMALL if CASES[name].get("inverse", True)])
def test_pytorch_computes_what_keras_does_with_trained_values(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = model_of(case, small=True)
    plan = runner.warm_start(model, scaffolds_of(case, checkpoint_of(case, KEPT)))
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(variable * random.uniform(0.9, 1.1, variable.shape))
    assert difference(model, KEPT / f"{case['source']}.npz") > 1e-3
    trained = tmp_path / "trained.safetensors"
    safetensors.numpy.save_file(plan.invert(model), trained)
    record(tmp_path, "--small", case["source"], "--weights", str(trained))
    assert difference(model, tmp_path / f"{case['source']}.npz") < 1e-5
