"""Every golden checkpoint x every rule of reading."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from runner.checkpoints import contents
from runner.checkpoints.locate import checkpoint_paths
from runner.checkpoints.open import AverageReader, open_reader
from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.errors import CheckpointError
from tests.conformance.goldens import MAKERS, STEP, Golden, make, relocated, tensors

Get = Callable[[str], Golden]

every_format = pytest.mark.parametrize("name", MAKERS)
in_one_file = [
    name
    for name in MAKERS
    if not name.startswith(("bundle", "object", "orbax", "saved_model"))
    and name not in ("safetensors_shards", "torch_shards", "keras_shards", "v1_sharded")
]


def names_in(spec: CheckpointSpec) -> dict[str, str]:
    """The goldens' names -> the names in the checkpoint, of which the former may be aliases."""
    return {name: spec.aliases.get(name, name) for name in tensors()}


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


@every_format
def test_the_spec_has_every_tensor_and_no_bookkeeping(name: str, shared_golden: Get) -> None:
    golden = shared_golden(name)
    spec = open_reader(golden.path).spec()
    file = spec.path.removesuffix("#state_dict")  # The mapping that is read by default.
    assert (file, spec.step) == (golden.path, golden.step)
    assert spec.format
    for expected, name in names_in(spec).items():
        shape = tensors()[expected].shape
        assert spec.tensors[name] == TensorSpec(name, shape, golden.dtype)
    shown = " ".join([*spec.tensors, *spec.aliases])
    for hidden in (".ATTRIBUTES", "VARIABLE_VALUE", "OBJECT_GRAPH", "save_counter", ":0"):
        assert hidden not in shown
    extra = set(spec.tensors) - set(names_in(spec).values())
    assert len(extra) <= 2, "no more than the step and the learning rate"


@every_format
def test_values_are_read_exactly_and_in_the_order_asked_for(name: str, shared_golden: Get) -> None:
    golden = shared_golden(name)
    reader = open_reader(golden.path)
    names = dict(reversed(names_in(reader.spec()).items()))
    values = list(reader.read(list(names.values())))
    assert [name for name, _ in values] == list(names.values())
    for expected, (_, value) in zip(names, values, strict=True):
        assert value.dtype.name == golden.dtype
        np.testing.assert_array_equal(value.astype(np.float32), tensors()[expected])


@every_format
def test_an_unknown_name_is_refused_with_the_nearest(name: str, shared_golden: Get) -> None:
    reader = open_reader(shared_golden(name).path)
    kernel = names_in(reader.spec())["dense/kernel"]
    with pytest.raises(CheckpointError, match=f"holds no tensor '{kernel}x'") as caught:
        list(reader.read([f"{kernel}x"]))
    assert kernel in caught.value.problems[0].choices


@every_format
def test_the_digest_is_of_the_content(name: str, shared_golden: Get, tmp_path: Path) -> None:
    golden = shared_golden(name)
    digest = open_reader(golden.path).spec().digest
    algorithm, _, digits = digest.partition(":")
    assert (algorithm, len(digits)) == ("sha256", 64)
    assert open_reader(golden.path, digest).spec().digest == digest
    changed = tensors()
    changed["dense/bias"][-1] += 1
    other = make(name, tmp_path, changed)
    with pytest.raises(CheckpointError, match="is not the checkpoint that was pinned"):
        open_reader(other.path, digest)


@every_format
def test_a_read_only_folder_is_enough(name: str, shared_golden: Get, tmp_path: Path) -> None:
    golden = shared_golden(name)
    folder = Path(shutil.copytree(Path(golden.path).parent, tmp_path / "copy"))
    everything = [folder, *folder.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = snapshot(folder)
    try:
        reader = open_reader(*checkpoint_paths(str(folder / Path(golden.path).name)))
        assert len(dict(reader.read(list(reader.spec().tensors)))) == len(reader.spec().tensors)
        assert snapshot(folder) == before, "reading writes nothing"
    finally:
        for path in everything:
            path.chmod(0o755)


@pytest.mark.parametrize("name", ["bundle", "safetensors_bfloat16"])
def test_checkpoints_are_averaged(name: str, shared_golden: Get, tmp_path: Path) -> None:
    paths = [shared_golden(name).path]
    paths += [make(name, tmp_path / str(offset), tensors(offset)).path for offset in (1.0, 5.0)]
    reader = AverageReader([open_reader(path) for path in paths])
    spec = reader.spec()
    ((_, value),) = reader.read([names_in(spec)["norm/moving_mean"]])
    assert value.dtype.name == shared_golden(name).dtype
    np.testing.assert_array_equal(
        value.astype(np.float32), tensors()["norm/moving_mean"] + np.float32(2)
    )


@every_format
def test_half_a_file_is_refused(name: str, shared_golden: Get, tmp_path: Path) -> None:
    golden = shared_golden(name)
    for number, file in enumerate(holding_tensors(golden)):
        half = file.read_bytes()[: file.stat().st_size // 2]
        with pytest.raises(CheckpointError) as caught:
            read_all(changed_copy(golden, tmp_path / str(number), file, half))
        assert "cannot be read" in str(caught.value) or "is not a checkpoint" in str(caught.value)


@every_format
def test_a_flipped_byte_in_a_tensor_is_found(name: str, shared_golden: Get, tmp_path: Path) -> None:
    golden = shared_golden(name)
    digest = open_reader(golden.path).spec().digest
    file, position = place_of("embed/embeddings", golden)
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    path = changed_copy(golden, tmp_path / "copy", file, content)
    # A format without checksums is protected by the digest that the plan pins.
    with pytest.raises(CheckpointError, match=r"cannot be read as|that was pinned"):
        read_all(path, None if golden.checksums else digest)


@pytest.mark.parametrize("name", in_one_file)
def test_the_format_is_recognised_under_any_name(
    name: str, shared_golden: Get, tmp_path: Path
) -> None:
    golden = shared_golden(name)
    wrong_suffix = tmp_path / "weights.npz.h5.bin"
    shutil.copyfile(golden.path, wrong_suffix)
    original, renamed = open_reader(golden.path), open_reader(str(wrong_suffix))
    assert renamed.spec().format == original.spec().format
    assert renamed.spec().tensors == original.spec().tensors


@every_format
def test_a_directory_stands_for_the_only_checkpoint_in_it(name: str, shared_golden: Get) -> None:
    golden = shared_golden(name)
    directory = golden.path if Path(golden.path).is_dir() else str(Path(golden.path).parent)
    assert checkpoint_paths(directory) == [golden.path]


@pytest.mark.parametrize("name", [name for name in MAKERS if name.startswith(("bundle", "v1"))])
def test_a_prefix_is_found_as_a_checkpoint_of_tensorflow(name: str, shared_golden: Get) -> None:
    path = shared_golden(name).path
    assert checkpoint_paths(path) == [path]
    directory = os.path.dirname(path)
    assert contents.is_checkpoint(path)
    assert contents.steps(directory) == {STEP: path}
    assert checkpoint_paths(directory, str(STEP)) == [path]
    if name != "v1_sharded":  # Only the `checkpoint` file lists the pattern of its shards.
        assert contents.in_directory(directory) == (path,)


_OF_TENSORFLOW = ("bundle", "v1", "object", "saved_model")


@pytest.mark.parametrize("name", [name for name in MAKERS if name.startswith(_OF_TENSORFLOW)])
def test_what_restore_v2_reads_is_the_same(name: str, shared_golden: Get) -> None:
    golden = shared_golden(name)
    spec = open_reader(golden.path).spec()
    names = names_in(spec)
    keys = {tensor: key for key, tensor in spec.keys.items()}
    is_export = os.path.isdir(golden.path)
    restored = tf.raw_ops.RestoreV2(
        prefix=f"{golden.path}/variables/variables" if is_export else golden.path,
        tensor_names=[keys.get(name, name) for name in names.values()],
        shape_and_slices=[""] * len(names),
        dtypes=[tf.float32] * len(names),
    )
    for expected, value in zip(names, restored, strict=True):
        np.testing.assert_array_equal(value, tensors()[expected])


def changed_copy(golden: Golden, target: Path, file: Path, content: bytes | bytearray) -> str:
    """Copies a golden with another content of one of its files, and returns its path."""
    folder = Path(golden.path).parent
    shutil.copytree(folder, target)
    (target / file.relative_to(folder)).write_bytes(content)
    return relocated(golden, folder, str(target))


def holding_tensors(golden: Golden) -> list[Path]:
    """The files of a golden that hold tensors or say where they are."""
    return [
        file
        for file in golden.files
        if file.name not in ("checkpoint", "saved_model.pb", "fingerprint.pb")
    ]


def place_of(name: str, golden: Golden) -> tuple[Path, int]:
    """A file of a golden and the position of a byte of a tensor in it."""
    value = tensors()[name]
    # Of a float32 that is exact in bfloat16, the bfloat16 is the upper half.
    stored = (value.view(np.uint16)[..., 1::2] if golden.dtype == "bfloat16" else value).tobytes()
    for file in holding_tensors(golden):
        position = file.read_bytes().find(stored)
        if position >= 0:
            return file, position
    # The tensor is packed: the middle of the file is in one.
    (file,) = holding_tensors(golden)
    return file, file.stat().st_size // 2


def read_all(path: str, digest: str | None = None) -> None:
    reader = open_reader(path, digest)
    for _ in reader.read(list(reader.spec().tensors)):
        pass
