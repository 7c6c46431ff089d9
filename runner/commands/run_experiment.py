"""`runner +experiment=NAME`: a run, or a sweep of runs, whose configuration Hydra composes."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from runner.api.start import start_job
from runner.config.composition import (
    RAISED,
    is_of_composition,
    problem_of,
    register,
    typed_overrides,
    with_plus_plus,
)
from runner.config.groups import shipped
from runner.config.masked_output import masked_output
from runner.console import WIDEST
from runner.errors import ConfigError, InterruptedRunError, RunnerError
from runner.system.lifeline import LIFELINE, end_with_launcher
from runner.training.context import RunContext

# Hydra's options that take the next argument as their value.
_VALUED = {"--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn"}
_VALUED |= {"--config-dir", "-cd", "--experimental-rerun"}
_HELP = {"--help", "-h", "--hydra-help"}
# The row of a key, or its meaning.
_KEY = re.compile(r"  [+~]?[\w.@]+[=:]| {4,}")


def run(arguments: Sequence[str]) -> int:
    """Runs the configuration that the arguments describe, and returns the exit code.

    Raises:
      RunnerError: as the run; `ConfigError` when the configuration does not compose.
    """
    end_with_launcher(os.environ)
    register()
    # Lets Hydra's errors reach us as exceptions; otherwise it prints them and exits with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        sys.argv[1:] = _options_first([with_plus_plus(argument) for argument in arguments])
        with _folded_help() if _HELP & {*arguments} else nullcontext():
            _job()
    except RAISED as error:
        if not is_of_composition(error):
            raise  # An error of the run, with its traceback.
        raise ConfigError(problem_of(error, arguments)) from error
    except SystemExit as end:
        if isinstance(end.code, RunnerError):
            raise end.code from None
        raise
    return 0


@hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name="config")
def _job(config: DictConfig) -> float | None:
    alone = HydraConfig.get().mode != RunMode.MULTIRUN
    context = RunContext(
        typed_overrides(),
        ends_command=alone,
        print_next_commands=alone and LIFELINE not in os.environ,
    )
    try:
        with masked_output():  # Of a process that a launcher has started.
            return start_job(config, context)
    except RunnerError as error:
        # Another sweeper continues with the next trial after a failure, but not after a signal.
        if not alone and not isinstance(error, InterruptedRunError):
            raise
        # Hydra would print a line of its own before an exception; SystemExit passes through.
        raise SystemExit(error) from error


@contextmanager
def _folded_help() -> Iterator[None]:
    """Folds what the block prints at the terminal's width, but for the keys, which are folded."""
    help_text = io.StringIO()
    try:
        with redirect_stdout(help_text):
            yield
    finally:
        width = max(shutil.get_terminal_size((WIDEST, 24)).columns, 2) - 1
        for line in help_text.getvalue().splitlines():
            indent = " " * (len(line) - len(line.lstrip()) + 4)
            folded = textwrap.wrap(
                line,
                width,
                subsequent_indent=indent,
                break_on_hyphens=False,
                break_long_words=False,
            )
            print("\n".join(folded) if len(line) > width and not _KEY.match(line) else line)


def _options_first(arguments: Sequence[str]) -> list[str]:
    """Moves the overrides behind the options, because `argparse` accepts them only in one piece."""
    options: list[str] = []
    overrides: list[str] = []
    previous = ""
    for argument in arguments:
        is_value = previous in _VALUED or (previous in ("--info", "-i") and "=" not in argument)
        (options if is_value or argument.startswith("-") else overrides).append(argument)
        previous = "" if is_value else argument
    return options + overrides
