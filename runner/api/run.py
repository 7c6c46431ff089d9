"""`runner.run`: an experiment by the rules of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from omegaconf import DictConfig

from runner.api.door import door
from runner.api.result import Result
from runner.api.start import start
from runner.config.composition import (
    command_scope,
    compose_command,
    search_path,
    without_hydra,
)
from runner.config.schema import RunConfig
from runner.config.spelling import spelled
from runner.console import screen_of_process
from runner.errors import ConfigError
from runner.training.context import RunContext

Overrides: TypeAlias = Sequence[str] | Mapping[str, Any]
"""As on the command line, `["train.steps=100"]`, or key -> value, `{"train.steps": 100}`."""
Configuration: TypeAlias = DictConfig | RunConfig | Mapping[str, Any]


@door
def run(
    experiment: str | Configuration | None = None,
    overrides: Overrides = (),
    *,
    config_dir: str | Path | None = None,
) -> Result:
    """Runs an experiment by the rules of the command line, in this process.

    It trains, resumes, plans, evaluates or exports, as `mode` says. What it changes in the process
    is put back afterwards: seeds, names and policy of Keras, Hydra, signal handlers, the current
    folder. SIGINT, such as the stop button of a notebook, saves and ends the run; the same call
    resumes it.

    Args:
      experiment: a name, as after `+experiment=`; or a configuration, composed or a mapping; None
        where `run_dir=...` names a run to evaluate or export.
      overrides: as on the command line, or key -> value; only with a name.
      config_dir: a folder with experiments, as after `--config-dir`.

    Returns:
      The run.

    Raises:
      RunnerError: as the command line reports it, with the same message; `InterruptedRunError`
        after a signal.
    """
    with command_scope():
        typed = as_typed(overrides)
        named = [f"+experiment={experiment}"] if isinstance(experiment, str) else []
        command = compose_command([*search_path(config_dir), *named, *typed])
        if experiment is None or named:
            return start(without_hydra(command), python_context([*named, *typed]))
        if typed:
            remedy = "change the configuration itself"
            raise ConfigError.of("overrides go with the name of an experiment", remedy=remedy)
        return start(experiment, python_context())


def python_context(overrides: Sequence[str] = (), **changes: Any) -> RunContext:
    """Returns the context of a run in this process, which is the user's."""
    context = RunContext(overrides, keeps_process=True, screen=screen_of_process())
    return replace(context, **changes)


def as_typed(overrides: Overrides) -> list[str]:
    """Returns overrides as on the command line; a string is one of them."""
    if isinstance(overrides, Mapping):
        return [f"{key}={spelled(value)}" for key, value in overrides.items()]
    if isinstance(overrides, str):
        return [overrides]
    return list(overrides)
