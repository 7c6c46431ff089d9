from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runner.checkpoints.inspection import open_checkpoint
from runner.errors import CheckpointError

LORA = Path(__file__).parents[2] / "data" / "lora"


@pytest.mark.parametrize("place", ["plain", "plain/adapter_model.safetensors"])
def test_an_adapter_is_refused_with_the_lines_that_merge_it(place: str) -> None:
    with pytest.raises(CheckpointError, match="is an adapter of peft") as caught:
        open_checkpoint(LORA / place)
    remedy = caught.value.problems[0].remedy
    lines = [line for line in remedy.splitlines() if line.startswith("    ")]
    assert len(lines) == 3
    compile("\n".join(line.strip() for line in lines), "remedy", "exec")
    assert repr(str(LORA / "plain")) in remedy


def test_a_model_merged_into_the_folder_of_an_adapter_is_read(tmp_path: Path) -> None:
    folder = shutil.copytree(LORA / "plain", tmp_path / "plain")
    shutil.copy(LORA / "base.safetensors", folder / "model.safetensors")
    assert "query.weight" in open_checkpoint(folder / "model.safetensors").tensors
