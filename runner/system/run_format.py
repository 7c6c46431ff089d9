"""The number of the format in which the files of runs and sweeps are written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.errors import RunDirectoryError

FORMAT = 3
"""Increases whenever those files change. Before 1.0, no version reads the format of another."""


def require_format(content: Mapping[str, Any], file: Path) -> None:
    """Checks the `format` of a record.

    Raises:
      RunDirectoryError: when a version with another format wrote the file.
    """
    number = content.get("format")
    if number != FORMAT:
        state = f"{file} is of format {number}" if number is not None else f"{file} has no format"
        raise RunDirectoryError.of(
            state,
            f"another version of the runner wrote it; this version uses format {FORMAT}",
            "use that version for it, or move it away",
        )
