"""The package as a stranger gets it: a wheel built from the source distribution."""

from __future__ import annotations

import tarfile
from pathlib import Path

from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[2]


def wheel_of_sdist(folder: Path) -> Path:
    """Builds a source distribution in a folder, and a wheel from it, as `python -m build` does."""
    (sdist,) = SdistBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    (wheel,) = WheelBuilder(str(unpacked)).build(directory=str(folder), versions=["standard"])
    return Path(wheel)
