"""Makes the folders that hold numbered ones: of runs, and of sweeps."""

from __future__ import annotations

from pathlib import Path

from runner.errors import Problem, RunDirectoryError


def make_container(container: Path, key: str) -> None:
    """Makes the folder of numbered ones that a setting, `key`, names.

    Raises:
      RunDirectoryError: it cannot be made.
    """
    try:
        container.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(
            Problem(
                f"{key} is {container}",
                f"it cannot be made: {error.strerror}",
                f"give {key}=... a folder that can be written",
            )
        ) from error
