"""The command line `runner COMMAND`: chooses the command, and reports how it ended."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata

from runner.config.command import typed_arguments
from runner.config.masked_output import masked, masked_output
from runner.errors import (
    ConfigError,
    InterruptedRunError,
    RunnerError,
    UserCodeError,
    ranked,
    similar,
)
from runner.system.lifeline import LIFELINE

COMMANDS = {
    "init": "init_project",
    "inspect": "inspect_checkpoint",
    "lineage": "show_lineage",
    "map": "map_checkpoint",
    "prove": "prove_run",
    "sync": "sync_run",
    "verify": "verify_run",
}
"""The commands besides a run -> their modules in this room."""
# No override: these have a `=`, or begin with `~`.
_WORD = re.compile(r"\w[\w/-]*")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code.

    The code is 0 when all is done, 2 for a mistake in the command or configuration, 3 for a plan
    with problems, 130 or 143 after a signal, and 1 for anything else.

    `arguments` are by default the arguments of this process.
    """
    arguments = typed_arguments() if arguments is None else arguments
    with masked_output():
        try:
            if "--version" in arguments:
                print(versions())
                return 0
            if arguments and _WORD.fullmatch(arguments[0]):
                return run_command(*arguments)
            # Hydra is not installed where runs are not wanted.
            from runner.commands.run_experiment import run

            return run(arguments)
        except RunnerError as error:
            return fail(error)
        except Exception:  # noqa: BLE001 - printed as Python would, but for the secrets
            traceback.print_exc()
            return 1


def run_command(name: str, *arguments: str) -> int:
    """Runs one of `COMMANDS` and returns its exit code.

    Raises:
      RunnerError: as the command does; `ConfigError` when no command has this name.
      SystemExit: after a mistake in the arguments, or with --help.
    """
    if name not in COMMANDS:
        raise ConfigError.of(
            f"there is no command {name!r}",
            "a first argument that is only a word names a command",
            f"fix the name; an experiment is run by +experiment={name}",
            ranked(name, (*COMMANDS, "--help", "--version")),
        )
    command = importlib.import_module(f"runner.commands.{COMMANDS[name]}")
    width = max(shutil.get_terminal_size().columns - 2, 11)  # As argparse folds the rest.
    paragraphs = (command.__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(
        f"runner {name}",
        description="\n\n".join(textwrap.fill(paragraph, width) for paragraph in paragraphs),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    parser.epilog = parser.epilog and textwrap.fill(parser.epilog, width)
    parsed, unknown = parser.parse_known_args(arguments)
    if option := next((word for word in unknown if word.startswith("-")), ""):
        option = option.partition("=")[0]  # The value may be a secret.
        options = re.findall(r"--\w[\w-]*", parser.format_help())
        state, remedy = f"runner {name} has no option {option}", f"see runner {name} --help"
        raise ConfigError.of(state, "", remedy, similar(option, options))
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return command.run(parsed) or 0


def versions() -> str:
    """Returns the installed versions of the packages that decide a run's result."""
    installed = []
    for name, package in (("runner", "runner"), ("TensorFlow", "tensorflow"), ("Keras", "keras")):
        try:
            installed.append(f"{name} {metadata.version(package)}")
        except metadata.PackageNotFoundError:  # A checkout that is merely on the Python path.
            installed.append(f"{name} (not installed)")
    return ", ".join(installed)


def fail(error: RunnerError) -> int:
    """Reports an error that has ended the command, and returns the exit code."""
    shown: RunnerError = error
    if isinstance(error, InterruptedRunError) and LIFELINE in os.environ:
        # The process that has started this task reports whether there is a run to continue.
        shown = RunnerError(*(replace(problem, remedy="") for problem in error.problems))
    details = f"\n{error.details}" if isinstance(error, UserCodeError) and error.details else ""
    # A message may repeat an override, or a value of the configuration.
    print(masked(f"runner: {shown}{details}"), file=sys.stderr)
    return error.exit_code
