"""`runner init`: creates a small working project: configurations, data, a model and a test."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import shlex
import shutil
from contextlib import suppress
from pathlib import Path

from runner.config.command import program
from runner.config.groups import shipped
from runner.errors import ConfigError

# The template's folder and package, which take the name of the project.
_NAME = "my_project"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the arguments of `runner init`."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="a new or an empty folder")


def run(arguments: argparse.Namespace) -> None:
    """Creates the project and prints the next step; raises what `create` raises."""
    print(create(arguments.folder, shipped("template")))


def create(folder: Path, template: Path) -> str:
    """Creates a project and returns a message with the next step.

    Args:
      folder: the folder of the project, which must be new or empty.
      template: the folder of the template.

    Raises:
      ConfigError: when the project cannot be created there; nothing is overwritten.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        state = f"{folder} exists and is not an empty folder"
        raise ConfigError.of(state, "nothing is overwritten", "name a new folder")
    name, is_new = _package(folder), not folder.exists()
    try:
        for source in sorted((template / _NAME).rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                target = folder / str(source.relative_to(template / _NAME)).replace(_NAME, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                content = source.read_text(encoding="utf-8").replace(_NAME, name)
                target.write_text(content, encoding="utf-8")
    except OSError as error:
        with suppress(OSError):
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if is_new:
                folder.rmdir()
        cause, remedy = error.strerror or str(error), "make room, or name another folder"
        raise ConfigError.of(f"{folder} cannot be written", cause, remedy) from error
    first = f"{program()} --config-dir conf +experiment=first"
    return f"{folder}: created; its README.md explains how to adapt it\n" + (
        f"next: cd {shlex.quote(str(folder))} && {first}"
    )


def _package(folder: Path) -> str:
    """Returns the name of the project's package: the name of its folder, made importable."""
    name = re.sub(r"[\s.-]", "_", folder.absolute().name)
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    taken = spec is not None and spec.origin is not None  # A folder alone has no origin.
    if name.isidentifier() and not keyword.iskeyword(name) and not taken:
        return name
    cause = "a package of that name is installed" if taken else "Python cannot import that name"
    raise ConfigError.of(
        f"{folder} cannot be the project's folder",
        f"{cause}, and the project's package is named after the folder",
        "choose another name with only letters, digits and _",
    )
