"""Damages bytes in the ways of disks, downloads and editors."""

from __future__ import annotations

import random
from collections.abc import Callable

Mutation = Callable[[bytearray, random.Random], bytearray]


def flip(content: bytearray, rng: random.Random) -> bytearray:
    """Flips a bit, half of the time near the start, where headers are."""
    end = rng.choice((len(content), min(len(content), 512)))
    content[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return content


def overwrite(content: bytearray, rng: random.Random) -> bytearray:
    start = rng.randrange(len(content))
    count = min(len(content) - start, rng.randrange(1, 64))
    content[start : start + count] = rng.choice((bytes(count), rng.randbytes(count)))
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


MUTATIONS: tuple[Mutation, ...] = (flip, overwrite, truncate, insert, delete)
