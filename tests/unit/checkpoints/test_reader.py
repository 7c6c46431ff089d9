"""The contract of every reader: errors, dtypes, and one tensor in memory at a time."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from numpy.typing import NDArray

from runner.checkpoints.open import open_reader
from runner.checkpoints.reader import TensorSpec, is_number, parse_dtype, require_names, unreadable
from runner.errors import CheckpointError
from tests.conformance.goldens import save_bundle, save_npz


@pytest.mark.parametrize(
    ("error", "cause"), [(ValueError("first\nsecond"), "first"), (MemoryError(), "MemoryError")]
)
def test_a_cause_is_one_line(error: Exception, cause: str) -> None:
    lines = str(unreadable("m", "an HDF5 file", error)).splitlines()
    assert lines[:2] == ["m cannot be read as an HDF5 file", f"  cause: {cause}"]


def test_all_unknown_names_are_reported_at_once() -> None:
    with pytest.raises(CheckpointError, match="m holds no tensor 'kernal'") as caught:
        require_names("m", ["kernal", "bias", "other"], {"kernel": 1, "bias": 2})
    assert [problem.choices[0] for problem in caught.value.problems] == ["kernel", "bias"]


@pytest.mark.parametrize("name", ["string", "resource", "str", "object", "nonsense"])
def test_what_is_no_number_has_no_dtype(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is not a type of numbers$"):
        parse_dtype(name)
    assert not is_number(name)


@pytest.mark.parametrize(
    ("shape", "name", "size"),
    [
        ((), "float64", 8),
        ((3, 4), "bfloat16", 24),
        ((2, 3), "float8_e4m3fn", 6),
        ((0, 5), "int32", 0),
        ((7,), "string", 0),
        ((), "variant", 0),
    ],
)
def test_the_bytes_of_a_tensor(shape: tuple[int, ...], name: str, size: int) -> None:
    assert TensorSpec("x", shape, name).bytes == size


COUNT, MEGABYTES = 6, 6
Values = dict[str, NDArray[np.float32]]


def _bundle(path: str, values: Values) -> None:
    # One for all: TensorFlow keeps the memory, in which reading would not be seen.
    save_bundle(path, dict.fromkeys(values, tf.constant(values["t0"])))


def _h5(path: str, values: Values) -> None:
    with h5py.File(path, "w") as file:
        for name, value in values.items():
            file[name] = value


def _npy(path: str, values: Values) -> None:
    record = np.zeros((), [(name, value.dtype, value.shape) for name, value in values.items()])
    for name, value in values.items():
        record[name] = value
    np.save(path, record)


WRITERS: dict[str, Callable[[str, Values], object]] = {
    "ckpt": _bundle,
    "h5": _h5,
    "safetensors": lambda path, values: safetensors.numpy.save_file(values, path),
    "npz": lambda path, values: save_npz(Path(path), **values),
    "npy": _npy,
}


def _anonymous() -> int:
    """Megabytes of anonymous memory; the pages of a mapped file can be dropped at any time."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) // 2**10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RssAnon is Linux's")
@pytest.mark.parametrize("suffix", WRITERS)
def test_reading_holds_one_tensor_at_a_time(suffix: str, tmp_path: Path) -> None:
    path = str(tmp_path / f"m.{suffix}")
    size = MEGABYTES * 2**18
    WRITERS[suffix](path, {f"t{n}": np.full(size, n, np.float32) for n in range(COUNT)})
    reader = open_reader(path)
    names = list(reader.spec().tensors)
    for _ in reader.read(names[:1]):
        pass
    ctypes.CDLL(None).malloc_trim(0)  # Memory that is free already would hide a peak.
    start, peaks, done = _anonymous(), [0], threading.Event()

    def watch() -> None:
        # A peak that the kernel keeps would count the pages of mapped files.
        while not done.wait(0.001):
            peaks.append(_anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    read = 0
    for _, value in reader.read(names):
        read += value.nbytes // 2**20
        peaks.append(_anonymous())
        del value
    done.set()
    watcher.join()
    assert read == COUNT * MEGABYTES
    assert max(peaks) - start <= 4 * MEGABYTES, f"for tensors of {MEGABYTES} MB"
