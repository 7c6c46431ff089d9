"""Imports large libraries without looking for garbage meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Pauses the garbage collector inside the block, and exempts from it what was made by its end.

    Modules live as long as the process, and importing TensorFlow makes 700,000 objects: looking
    through them for garbage takes a fourth of the import's time, and slows all later collections.
    Meant for the start of a process: garbage that is there would be kept for good.
    """
    with paused_collections():
        try:
            yield
        finally:
            gc.freeze()


@contextmanager
def paused_collections() -> Iterator[None]:
    """Pauses the garbage collector inside the block.

    Where thousands of objects are made beside a large graph, it looks through all of the graph.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
