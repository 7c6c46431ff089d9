"""Commands that a user may copy into a shell, quoted for it and for Hydra's grammar."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from runner.config.spelling import quoted

# A path that needs no quotes in Hydra's grammar.
_PLAIN_PATH = re.compile(r"/[\w./@%+-]*", re.ASCII)
_NEVER = re.compile(r"\+*resume=never")


def called(program: Path, name: str) -> str:
    """Returns the shortest command that calls a program of this environment from here."""
    found = shutil.which(name)
    if found and Path(found) == program:
        return name
    here = Path.cwd()
    return shlex.quote(str(program.relative_to(here) if program.is_relative_to(here) else program))


def program() -> str:
    """Returns the command that calls the runner: `runner` if this process was started so."""
    python = Path(sys.executable)
    if Path(sys.argv[0]).name == "runner":
        return called(python.with_name("runner"), "runner")
    return f"{called(python, 'python')} -m runner"


def on_run(mode: str, run_dir: Path) -> str:
    """Returns the command that evaluates or exports a run by its directory, from any folder."""
    path = str(run_dir.absolute())
    value = path if _PLAIN_PATH.fullmatch(path) else quoted(path, double=True)
    return f"{program()} mode={mode} {shlex.quote(f'run_dir={value}')}"


def resuming(arguments: Sequence[str]) -> str:
    """Returns the arguments of a command, quoted, without those that would start another run."""
    return shlex.join(each for each in arguments if not _NEVER.fullmatch(each))
