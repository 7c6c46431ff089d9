"""Damaged files of every format: no crash, no hang, no other error, no silent wrong value.

Run as a module with a folder, it reads mutated goldens and prints a line for each mutation; after a
crash of the interpreter the last line names the mutation.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.open import open_reader
from runner.errors import CheckpointError
from tests.conformance.goldens import MAKERS, Golden, make, relocated
from tests.support.bytes import MUTATIONS
from tests.support.forked import ROOT, Forks

PER_FORMAT = 5


def content_of(path: str, digest: str | None = None) -> dict[str, NDArray[Any]]:
    """Reads every tensor of a checkpoint."""
    reader = open_reader(path, digest)
    spec = reader.spec()
    values = dict(reader.read(list(spec.tensors)))
    for name, value in values.items():
        assert value.shape == spec.tensors[name].shape, name
        assert value.dtype.name == spec.tensors[name].dtype, name
    return values


def outcome(path: str, golden: Golden, digest: str, expected: dict[str, NDArray[Any]]) -> str:
    """Returns `refused`, `unharmed`, or `wrong` with what is wrong."""
    # Without checksums, a format is safe as far as its digest is pinned.
    pinned = None if golden.checksums else digest
    try:
        values = content_of(path, pinned)
        if pinned is not None:
            content_of(path)  # Some seeds make the HDF5 library loop for ever: see `keras_files`.
    except CheckpointError as error:
        return "refused" if str(error) else "wrong: no message"
    if values.keys() != expected.keys():
        return f"wrong: names {sorted(values.keys() ^ expected.keys())}"
    for name, value in expected.items():
        if values[name].tobytes() != value.tobytes():
            return f"wrong: values of {name}"
    return "unharmed"


def main(folder: Path) -> None:
    for name in MAKERS:
        original, mutated = folder / name, folder / f"{name}_mutated"
        golden = make(name, original)
        digest = open_reader(golden.path).spec().digest
        expected = content_of(golden.path)
        rng = random.Random(name)
        for number in range(PER_FORMAT):
            shutil.rmtree(mutated, ignore_errors=True)
            shutil.copytree(original, mutated)
            file, mutation = rng.choice(golden.files), rng.choice(MUTATIONS)
            print(f"{name} {number} {mutation.__name__} {file.name}", end=": ", flush=True)
            target = mutated / file.relative_to(original)
            target.write_bytes(mutation(bytearray(file.read_bytes()), rng))
            path = relocated(golden, original, str(mutated))
            print(outcome(path, golden, digest, expected), flush=True)


def test_mutated_checkpoints_are_refused_or_read_right(tmp_path: Path, forks: Forks) -> None:
    # In a separate process, so that a crash fails this test and not the whole run.
    process = forks.start(
        [sys.executable, "-m", __name__, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = process.communicate(timeout=240)
    lines = output.splitlines()
    assert process.returncode == 0, f"after {lines[-1:]}: {errors[-3000:]}"
    outcomes = Counter(line.partition(": ")[2] for line in lines)
    assert not [line for line in lines if ": wrong" in line]
    assert outcomes["refused"] + outcomes["unharmed"] == PER_FORMAT * len(MAKERS)
    assert outcomes["refused"] > outcomes["unharmed"], "most mutations do harm"


if __name__ == "__main__":
    np.seterr(all="ignore")
    main(Path(sys.argv[1]))
