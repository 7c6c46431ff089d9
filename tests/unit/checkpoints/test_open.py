from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from runner.checkpoints.open import open_checkpoint, open_pinned
from runner.errors import CheckpointError


def test_a_changed_file_is_not_the_one_that_was_pinned(tmp_path: Path) -> None:
    path = tmp_path / "m.npy"
    np.save(path, np.zeros(8))
    digest = open_checkpoint(str(path)).spec().digest
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"was pinned\n.*its digest is sha256.*{digest}"):
        open_checkpoint(str(path), digest)


def test_tensorflow_is_not_imported_for_files_that_do_without(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", w=np.ones(3))
    code = (
        "import sys\n"
        "from runner.checkpoints.locate import resolve\n"
        "from runner.checkpoints.open import open_checkpoint\n"
        "reader = open_checkpoint(resolve(sys.argv[1])[0])\n"
        "print(dict(reader.read(['w'])))\n"
        "print(sorted({'tensorflow', 'h5py', 'safetensors', 'keras', 'mlflow'} & {*sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.npz")],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_one_path_is_opened_and_several_are_averaged(tmp_path: Path) -> None:
    paths = []
    for number in (1.0, 4.0):
        paths.append(str(tmp_path / f"{number}.npz"))
        np.savez(paths[-1], w=np.array([number]))
    for chosen, expected in ((paths[:1], 1.0), (paths, 2.5)):
        pinned = [(path, open_checkpoint(path).spec().digest) for path in chosen]
        ((_, value),) = open_pinned(pinned).read(["w"])
        assert value.tolist() == [expected]
    with pytest.raises(CheckpointError, match=r"1\.0\.npz is not the checkpoint that was pinned"):
        open_pinned([(paths[0], pinned[1][1])])
