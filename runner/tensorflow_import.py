"""Imports TensorFlow where that is to happen before a run needs it."""

from __future__ import annotations

import os
import sys

from runner.quick_import import without_collections
from runner.quiet_import import LEVEL, without_import_notes


def import_tensorflow() -> None:
    """Imports it fast and without a word, if it has not been imported yet."""
    if "tensorflow" in sys.modules:
        return
    given = LEVEL in os.environ
    with without_import_notes(), without_collections():
        import tensorflow  # noqa: F401 - what follows finds it there
    if not given:
        # Processes that are started from here would take it for the user's, and print the notes.
        del os.environ[LEVEL]
