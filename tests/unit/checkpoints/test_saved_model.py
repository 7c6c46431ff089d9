from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from runner.checkpoints.open import open_checkpoint
from runner.errors import CheckpointError


def test_one_without_variables_is_refused(tmp_path: Path) -> None:
    tf.saved_model.save(tf.Module(), str(tmp_path / "empty"))
    for file in (tmp_path / "empty" / "variables").iterdir():
        file.unlink()
    with pytest.raises(CheckpointError, match=r"the SavedModel .*empty holds no variables"):
        open_checkpoint(str(tmp_path / "empty")).spec()
