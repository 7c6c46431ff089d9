"""One tensor at a time: the peak of reading is far below the size of the file."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

COUNT, MEGABYTES = 12, 8

# Anonymous memory only: the pages of a mapped file can be dropped at any time. It is sampled by a
# thread, because a peak that the kernel keeps would count those pages.
CODE = """
import sys, threading
from runner.checkpoints.open import open_checkpoint

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

def measure(path):
    reader = open_checkpoint(path)
    names = list(reader.spec().tensors)
    for _ in reader.read(names[:1]):
        pass
    start, peak, total, done = anonymous(), 0, 0, threading.Event()

    def watch():
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for name, value in reader.read(names):
        total += value.nbytes
        peak = max(peak, anonymous())
        del value
    done.set()
    watcher.join()
    return total // 2**20, (peak - start) // 2**10

print({path: measure(path) for path in sys.argv[1:]})
"""


def _values() -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    rng = np.random.default_rng(0)
    size = MEGABYTES * 2**18
    return {f"t{number}": rng.random(size, np.float32) for number in range(COUNT)}


def _bundle(folder: Path) -> str:
    values = _values()
    tf.raw_ops.SaveV2(
        prefix=str(folder / "m"),
        tensor_names=list(values),
        shape_and_slices=[""] * COUNT,
        tensors=list(values.values()),
    )
    return str(folder / "m")


def _h5(folder: Path) -> str:
    with h5py.File(folder / "m.h5", "w") as file:
        for name, value in _values().items():
            file[name] = value
    return str(folder / "m.h5")


def _safetensors(folder: Path) -> str:
    safetensors.numpy.save_file(_values(), folder / "m.safetensors")
    return str(folder / "m.safetensors")


def _npz(folder: Path) -> str:
    np.savez(folder / "m.npz", allow_pickle=False, **_values())
    return str(folder / "m.npz")


def _npy(folder: Path) -> str:
    values = _values()
    size = MEGABYTES * 2**18
    record = np.zeros((), np.dtype([(name, np.float32, (size,)) for name in values]))
    for name, value in values.items():
        record[name] = value
    np.save(folder / "m.npy", record)
    return str(folder / "m.npy")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RssAnon is Linux's")
def test_reading_holds_one_tensor_at_a_time(tmp_path: Path) -> None:
    paths = [write(tmp_path) for write in (_bundle, _h5, _safetensors, _npz, _npy)]
    done = subprocess.run(
        [sys.executable, "-c", CODE, *paths],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    measured = ast.literal_eval(done.stdout.splitlines()[-1])
    assert list(measured) == paths
    for path, (read, peak) in measured.items():
        assert read == COUNT * MEGABYTES
        assert peak <= 4 * MEGABYTES, f"{peak} MB for tensors of {MEGABYTES} MB in {path}"
