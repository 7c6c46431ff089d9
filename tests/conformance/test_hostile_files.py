"""Hostile and odd files: no crash, no hang, no unbounded memory; see `hostile_files`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.checkpoints import files
from runner.checkpoints.open import open_reader
from runner.errors import CheckpointError
from tests.conformance import hostile_files
from tests.conformance.goldens import make
from tests.conformance.test_mutations import content_of
from tests.support.forked import ROOT, Forks

# These cover every kind of guard, and take a moment each.
QUICK = (
    *(
        "pipe-m_keras",
        "pipe-m_index",
        "pipe_in_directory-checkpoint",
        "pipe_as_shard-m_safetensors",
    ),
    *("pipe_named_by_state_file-m", "pipe_as_data_of_a_bundle", "device-_dev_zero"),
    *("external_link-weights", "external_link-pipe", "external_link-list", "external_data"),
    *("one_chunk_of_gigabytes-gzip", "dataset_of_gigabytes-f4", "nested_groups-70"),
    *("archive_that_unpacks_to_much-keras-12", "size_of_member-npz", "directory_of_archive-pt"),
    *("sparse_json-_weight_map_", "sparse_description-checkpoint", "sparse_description-MLmodel"),
    *("nested_json-_", "mlflow_model-flavors_a_a_a_a_a_a_a_a_a_a_a_a_a_a_a_a_", "truncated_v1-0_5"),
    *("shape_in_bundle-_1_-FLOAT", "shape_in_v1-_1_-FLOAT", "unknown_rank"),
    *("shape_in_bundle-_1099511627776_1099511627776_-FLOAT", "shape_in_npz-_3221225472_-_f4"),
    "shape_in_npy-_9223372036854775808_",
    *("snappy_that_declares_gigabytes", "entry_of_bundle-_shape_4_dtype_101_"),
)


def _opened(forks: Forks, folder: Path, names: list[str]) -> None:
    process = forks.start(
        [sys.executable, "-m", hostile_files.__name__, str(folder), *names],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = process.communicate(timeout=60 + hostile_files.SECONDS * len(names))
    lines = output.splitlines()
    assert process.returncode == 0, f"after {lines[-1:]}: {errors[-3000:]}"
    assert [line for line in lines if ", wrong: " in line or ": wrong: " in line] == []
    assert len(lines) == len(names)


def test_hostile_files_are_refused(tmp_path: Path, forks: Forks) -> None:
    _opened(forks, tmp_path, list(QUICK))


@pytest.mark.soak
def test_300_hostile_files_are_refused(tmp_path: Path, forks: Forks) -> None:
    assert len(hostile_files.FILES) >= 300
    _opened(forks, tmp_path, list(hostile_files.FILES))


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_a_truncated_v1_checkpoint_is_refused(part: float, tmp_path: Path) -> None:
    golden = make("v1", tmp_path)
    path = Path(golden.path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(CheckpointError, match="is not a checkpoint of a known format"):
        open_reader(str(path))


def test_a_flipped_v1_checkpoint_is_named(tmp_path: Path) -> None:
    path = Path(make("v1", tmp_path).path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="checksum mismatch in the block at byte"):
        content_of(str(path))


@pytest.mark.parametrize("name", ["npy_record", "keras_h5_of_keras3", "bundle", "npz"])
def test_a_file_swapped_under_the_same_size_and_time_is_noticed(name: str, tmp_path: Path) -> None:
    golden = make(name, tmp_path)
    digest = open_reader(golden.path).spec().digest
    for file in golden.files:
        before, content = file.stat(), bytearray(file.read_bytes())
        content[-9 if name == "bundle" else len(content) // 2] ^= 1
        with file.open("r+b") as target:  # The same inode.
            target.write(content)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert file.stat().st_mtime_ns == before.st_mtime_ns
        assert files.size(str(file)) == before.st_size
    with pytest.raises(CheckpointError):
        content_of(golden.path, digest)
