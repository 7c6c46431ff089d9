"""Imports large libraries quickly and without their notes."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import RunnerError


@contextmanager
def without_collections() -> Iterator[None]:
    """Pauses the garbage collector inside the block, and exempts all objects that exist at its end.

    Modules live as long as the process, and importing TensorFlow creates 700,000 objects: looking
    through them for garbage takes a fourth of the import's time, and slows all later collections.
    Meant for the start of a process, because garbage that exists by then is never freed.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def python_path(*folders: str) -> str:
    """Returns the PYTHONPATH for a process that imports this package, and what is in `folders`."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (root, *folders, os.environ.get("PYTHONPATH"))))


LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@contextmanager
def without_import_notes() -> Iterator[None]:
    """Discards what is written to file descriptor 2 inside the block, unless an import fails.

    A `RunnerError` explains itself. TensorFlow's C++ libraries report CPU features and missing GPU
    drivers while they are loaded, whatever the log level is. A user who sets
    `TF_CPP_MIN_LOG_LEVEL=0` sees them.
    """
    if os.environ.setdefault(LEVEL, "2") == "0":
        yield
        return
    sys.stderr.flush()
    descriptor = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            yield
        except RunnerError:
            raise
        except BaseException:
            notes.seek(0)
            with os.fdopen(os.dup(descriptor), "wb") as stderr:
                shutil.copyfileobj(notes, stderr)
            raise
        finally:
            os.dup2(descriptor, 2)
            os.close(descriptor)


def import_tensorflow(*modules: str) -> None:
    """Imports TensorFlow, and modules that need it, quickly and silently.

    Where TensorFlow has been imported already, it does nothing.
    """
    if "tensorflow" in sys.modules:
        return
    is_set = LEVEL in os.environ
    with without_import_notes(), without_collections():
        import tensorflow as tf

        for module in modules:
            importlib.import_module(module)
        # Otherwise the first session looks for GPUs, and reports a missing driver.
        tf.config.list_physical_devices()
    if not is_set:
        # Child processes would take it for the user's, and print the notes.
        del os.environ[LEVEL]
