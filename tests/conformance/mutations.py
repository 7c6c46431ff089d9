"""Reads mutated goldens in this process and prints the outcome of each, a line a mutation.

Run as `python -m tests.conformance.mutations FOLDER COUNT SEED NAME...`, so that a crash of the
interpreter is seen from outside; the last line then names the mutation.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints.open import open_checkpoint
from runner.errors import CheckpointError
from tests.conformance.goldens import MAKERS, Golden, make, relocated

Mutation = Callable[[bytearray, random.Random], bytearray]


def flip(content: bytearray, rng: random.Random) -> bytearray:
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return content


def flip_near_the_start(content: bytearray, rng: random.Random) -> bytearray:
    content[rng.randrange(min(len(content), 512))] ^= 1 << rng.randrange(8)
    return content


def overwrite(content: bytearray, rng: random.Random) -> bytearray:
    start = rng.randrange(len(content))
    end = min(len(content), start + rng.randrange(1, 64))
    content[start:end] = rng.randbytes(end - start)
    return content


def erase(content: bytearray, rng: random.Random) -> bytearray:
    start = rng.randrange(len(content))
    end = min(len(content), start + rng.randrange(1, 64))
    content[start:end] = bytes(end - start)
    return content


def truncate(content: bytearray, rng: random.Random) -> bytearray:
    return content[: rng.randrange(len(content))]


def insert(content: bytearray, rng: random.Random) -> bytearray:
    at = rng.randrange(len(content))
    content[at:at] = rng.randbytes(rng.randrange(1, 16))
    return content


def delete(content: bytearray, rng: random.Random) -> bytearray:
    at = rng.randrange(len(content))
    del content[at : at + rng.randrange(1, 16)]
    return content


MUTATIONS: tuple[Mutation, ...] = (
    flip,
    flip_near_the_start,
    overwrite,
    erase,
    truncate,
    insert,
    delete,
)


def content_of(path: str, digest: str | None = None) -> dict[str, NDArray[Any]]:
    """Reads every tensor of a checkpoint."""
    reader = open_checkpoint(path, digest)
    spec = reader.spec()
    values = dict(reader.read(list(spec.tensors)))
    for name, value in values.items():
        assert value.shape == spec.tensors[name].shape, name
        assert value.dtype.name == spec.tensors[name].dtype, name
    return values


def outcome(path: str, made: Golden, digest: str, expected: dict[str, NDArray[Any]]) -> str:
    """Returns `refused`, `unharmed`, or `wrong` with what is wrong."""
    # Without checksums of its own, a format is safe as far as its digest is pinned.
    pinned = None if made.checksums else digest
    try:
        found = content_of(path, pinned)
        if pinned is not None:
            content_of(path)  # Some seeds make the HDF5 library loop for ever: see `keras_files`.
    except CheckpointError as error:
        return "refused" if str(error) else "wrong: no message"
    if found.keys() != expected.keys():
        return f"wrong: names {sorted(found.keys() ^ expected.keys())}"
    for name, value in expected.items():
        if found[name].tobytes() != value.tobytes():
            return f"wrong: values of {name}"
    return "unharmed"


def main(folder: Path, count: int, seed: int, names: list[str]) -> None:
    for name in names or list(MAKERS):
        original, mutated = folder / name, folder / f"{name}_mutated"
        made = make(name, original)
        digest = open_checkpoint(made.path).spec().digest
        expected = content_of(made.path)
        rng = random.Random(f"{name} {seed}")
        for number in range(count):
            shutil.rmtree(mutated, ignore_errors=True)
            shutil.copytree(original, mutated)
            file = rng.choice(made.files)
            mutation = rng.choice(MUTATIONS)
            label = f"{name} {number} {mutation.__name__} {file.name}"
            print(label, end=": ", flush=True)
            target = mutated / file.relative_to(original)
            target.write_bytes(mutation(bytearray(file.read_bytes()), rng))
            path = relocated(made, original, str(mutated))
            print(outcome(path, made, digest, expected), flush=True)


if __name__ == "__main__":
    np.seterr(all="ignore")
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
