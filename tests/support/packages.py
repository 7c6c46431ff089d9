"""The package as a stranger gets it: a wheel built from the source distribution."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
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


def install(folder: Path) -> Path:
    """Installs the wheel into a new virtual environment, which has the packages of this one too.

    Returns:
      The folder of its programs, such as `python`, `pip` and `runner`.
    """
    environment = folder / "venv"
    venv.create(environment, with_pip=True)
    (site,) = environment.glob("lib/python*/site-packages")
    shared = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "shared.pth").write_text("\n".join(shared))
    wheel = str(wheel_of_sdist(folder))
    pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--ignore-installed", wheel], check=True)
    return environment / "bin"
