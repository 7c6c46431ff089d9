"""The command that started this process, and commands that a user may copy into a shell."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from runner.config.spelling import quoted

# A path that needs no quotes in Hydra's grammar.
_PLAIN_PATH = re.compile(r"/[\w./@%+-]*", re.ASCII)
_NEVER = re.compile(r"\+*resume=never")


def script() -> Path:
    """Returns the program that was started, `runner` or a file of Python."""
    return Path(sys.argv[0])


def typed_arguments() -> list[str]:
    """Returns the arguments of that program."""
    return sys.argv[1:]


def typed_command() -> list[str]:
    """Returns the whole command as it was typed, the interpreter included."""
    return sys.orig_argv


def config_folders() -> Iterator[Path]:
    """Yields the folders of configuration files that the command names, by `--config-dir`."""
    parts = [part for argument in typed_arguments() for part in argument.split("=", 1)]
    for option, folder in pairwise(parts):
        if option in ("--config-dir", "-cd"):
            yield Path(folder)


def called(program: Path, name: str) -> str:
    """Returns the shortest command that calls a program of this environment from here."""
    on_path = shutil.which(name)
    if on_path and Path(on_path) == program:
        return name
    folder = Path.cwd()
    inside = program.is_relative_to(folder)
    return shlex.quote(str(program.relative_to(folder) if inside else program))


def program() -> str:
    """Returns the command that calls the runner: `runner` if this process was started so."""
    python = Path(sys.executable)
    if script().name == "runner":
        return called(python.with_name("runner"), "runner")
    return f"{called(python, 'python')} -m runner"


def on_run(mode: str, run_dir: Path) -> str:
    """Returns the command that evaluates or exports a run by its directory, from any folder."""
    path = str(run_dir.absolute())
    value = path if _PLAIN_PATH.fullmatch(path) else quoted(path, double=True)
    return f"{program()} mode={mode} {shlex.quote(f'run_dir={value}')}"


def resuming() -> str:
    """Returns the arguments, quoted, without those that would start another run."""
    return shlex.join(argument for argument in typed_arguments() if not _NEVER.fullmatch(argument))
