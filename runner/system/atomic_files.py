"""Writes files that hold, whatever happens, either what they held before or what they are to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes by renaming, so that a reader never sees half a file."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True))


def write_text(path: Path, text: str, *, lasting: bool = True) -> None:
    """Writes by renaming: whatever happens, the file is as it was before or as it is to be.

    Without `lasting` that holds for the death of the process, and not for that of the machine.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
