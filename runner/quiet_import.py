"""Imports TensorFlow without the notes that its libraries print before logging is set up."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@contextmanager
def without_import_notes() -> Iterator[None]:
    """Drops what is written to file descriptor 2 inside the block, unless the block fails.

    TensorFlow's C++ libraries tell of CPU features and missing GPU drivers while they are loaded,
    whatever the log level is. A user who sets `TF_CPP_MIN_LOG_LEVEL` sees everything.
    """
    if LEVEL in os.environ:
        yield
        return
    os.environ[LEVEL] = "2"
    sys.stderr.flush()
    descriptor = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            yield
        except BaseException:
            notes.seek(0)
            with os.fdopen(os.dup(descriptor), "wb") as stderr:
                shutil.copyfileobj(notes, stderr)
            raise
        finally:
            os.dup2(descriptor, 2)
            os.close(descriptor)
