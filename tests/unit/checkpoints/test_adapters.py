from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from runner.checkpoints.locate import resolve
from runner.checkpoints.open import open_checkpoint
from runner.errors import CheckpointError

DATA = Path(__file__).parents[2] / "data" / "lora"
BASE = str(DATA / "base.safetensors")


def read(path: str) -> Mapping[str, NDArray[Any]]:
    reader = open_checkpoint(path)
    return dict(reader.read(list(reader.spec().tensors)))


def merged(adapter: Path, base: str = BASE) -> Mapping[str, NDArray[Any]]:
    (path,) = resolve(f"{base}+lora:{adapter}")
    return read(path)


@pytest.mark.parametrize("name", ["plain", "everything", "patterns"])
def test_merged_values_are_those_of_peft(name: str) -> None:
    expected, base = read(str(DATA / f"{name}.merged.safetensors")), read(BASE)
    values = merged(DATA / name)
    assert set(values) == set(expected)
    for tensor, value in values.items():
        np.testing.assert_allclose(value, expected[tensor], rtol=1e-6, atol=1e-6)
        assert np.array_equal(value, base[tensor]) == np.array_equal(expected[tensor], base[tensor])


def changed(folder: Path, **settings: Any) -> Path:
    """A copy of an adapter with other settings."""
    shutil.copytree(DATA / "plain", folder)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    return folder


def test_kernels_of_gpt2_are_changed_by_the_transposed_product(tmp_path: Path) -> None:
    base = {name: np.ascontiguousarray(value.T) for name, value in read(BASE).items()}
    safetensors.numpy.save_file(base, tmp_path / "base.safetensors")
    adapter = changed(tmp_path / "adapter", fan_in_fan_out=True)
    values = merged(adapter, str(tmp_path / "base.safetensors"))
    expected = read(str(DATA / "plain.merged.safetensors"))
    np.testing.assert_allclose(values["query.weight"].T, expected["query.weight"], rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"peft_type": "IA3"}, "type IA3"),
        ({"init_lora_weights": "pissa_niter_4"}, "began as pissa_niter_4"),
    ],
)
def test_other_adapters_are_refused(
    settings: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        merged(changed(tmp_path / "adapter", **settings))


def test_an_adapter_without_its_settings_is_refused(tmp_path: Path) -> None:
    (changed(tmp_path / "adapter") / "adapter_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"the adapter has no adapter_config.json\n.*scale"):
        merged(tmp_path / "adapter")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha_pattern": ["query"]}, "AttributeError|no attribute"),
        ({"alpha_pattern": {"(": 1}}, "missing \\)"),
        ({"lora_alpha": "x"}, "could not convert"),
    ],
)
def test_damaged_settings_are_an_error_that_names_the_adapter(
    settings: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    adapter = changed(tmp_path / "adapter", **settings)
    with pytest.raises(CheckpointError, match=f"{adapter}.* cannot be read(.|\n)*({message})"):
        merged(adapter)


def test_a_change_of_another_shape_is_refused(tmp_path: Path) -> None:
    base = {**read(BASE), "query.weight": np.zeros((6, 8), np.float32)}
    safetensors.numpy.save_file(base, tmp_path / "base.safetensors")
    with pytest.raises(CheckpointError, match=r"shape \(6, 8\) by one of \(6, 4\)"):
        merged(DATA / "plain", str(tmp_path / "base.safetensors"))


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base.safetensors"
    safetensors.numpy.save_file({"model.query.weight": np.zeros((6, 4), np.float32)}, base)
    with pytest.raises(CheckpointError, match=r"changes query.weight(.|\n)*model.query.weight"):
        merged(DATA / "plain", str(base))


def test_the_adapter_and_its_settings_belong_to_the_digest(tmp_path: Path) -> None:
    digests = {
        open_checkpoint(f"{BASE}+lora:{adapter / 'adapter_model.safetensors'}").spec().digest
        for adapter in (DATA / "plain", changed(tmp_path / "adapter", lora_alpha=8))
    }
    assert len(digests) == 2


def test_the_first_pattern_that_matches_sets_the_scale(tmp_path: Path) -> None:
    patterns = {"key|query": 14, "query": 1}
    changed(tmp_path / "patterns", alpha_pattern=patterns, lora_alpha=1)
    changed(tmp_path / "alpha", lora_alpha=14)
    one, other = (merged(tmp_path / name)["query.weight"] for name in ("patterns", "alpha"))
    assert one.tolist() == other.tolist()


def test_a_bias_that_was_trained_with_the_factors_is_replaced(tmp_path: Path) -> None:
    adapter = changed(tmp_path / "adapter")
    file = adapter / "adapter_model.safetensors"
    tensors = dict(read(str(file)))
    bias = np.full_like(read(BASE)["query.bias"], 3)
    tensors["base_model.model.query.base_layer.bias"] = bias
    safetensors.numpy.save_file(tensors, file)
    assert merged(adapter)["query.bias"].tolist() == bias.tolist()
