"""`runner.run`: an experiment by the rules of the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from runner.api.door import door, unchanged_process
from runner.api.result import Result
from runner.cluster.local import LocalCluster, task_command
from runner.config.cluster import resolve_cluster
from runner.config.cluster_spec import is_task, launches
from runner.config.composition import (
    command_scope,
    compose_command,
    experiment_names,
    without_hydra,
)
from runner.config.groups import shipped
from runner.config.schema import EVALUATOR, PS, WORKER, RunConfig
from runner.config.spelling import spelled
from runner.config.validation import is_from_run_dir, validate
from runner.console import Screen, screen_of_process
from runner.errors import ConfigError
from runner.runs.recorded_config import recorded_config
from runner.runs.run_directory import runs
from runner.system.imports import import_tensorflow
from runner.system.signals import Interruption
from runner.training.watch import TrialWatch

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
            return run_config(without_hydra(command), [*named, *typed])[0]
        if typed:
            remedy = "change the configuration itself"
            raise ConfigError.of("overrides go with the name of an experiment", remedy=remedy)
        return run_config(experiment, [])[0]


def run_config(
    config: Any,
    overrides: Sequence[str],
    watch: TrialWatch | None = None,
    screen: Screen | None = None,
) -> tuple[Result, float | None]:
    """Runs a configuration within `command_scope`, and returns the run and its objective."""
    from_run_dir = isinstance(config, DictConfig) and is_from_run_dir(config)
    if from_run_dir:
        config = recorded_config(config, overrides)
    valid = resolve_cluster(validate(config, experiment_names()), os.environ)
    if is_task(valid.cluster, PS, WORKER, EVALUATOR):
        remedy = "start each with the command line: python -m runner"
        raise ConfigError.of("this process is a task of a cluster", remedy=remedy)
    if launches(valid):
        command = task_command(HydraConfig.get(), shipped("conf"))
        seconds = valid.session.grace_seconds
        LocalCluster(valid.cluster, command, save_seconds=seconds).run()
        return Result(valid, next((run.path for run, _ in runs(Path(valid.run_dir))), None)), None
    import_tensorflow()
    from runner.cluster.chief import coordinator_of
    from runner.config.choices import SCAFFOLDS, Mode
    from runner.lifecycle import perform
    from runner.restoration.eager_plan import WarmStartPlan
    from runner.training.experiment import Experiment, RunContext

    context = RunContext(
        overrides=overrides,
        from_run_dir=from_run_dir,
        screen=screen or screen_of_process(),
        watch=watch or TrialWatch(),
        coordinator=coordinator_of(valid),
    )
    seconds = valid.session.grace_seconds
    with unchanged_process(), Interruption(seconds, keeps_process=True).handled():
        experiment = Experiment(valid, context)
        outcome = perform(experiment)
    directory, plan = outcome.directory, outcome.plan
    if valid.mode not in (Mode.train, Mode.plan):
        settings = getattr(valid, valid.mode.value)
        directory = None if settings.which == SCAFFOLDS else experiment.finished_run().path
    if plan is not None:
        origins = experiment.sources.origins()
        plan = WarmStartPlan(**vars(plan), origins=origins, model=valid.name)
    return Result(valid, directory, plan, outcome.metrics), outcome.objective


def as_typed(overrides: Overrides) -> list[str]:
    """Returns overrides as on the command line."""
    if isinstance(overrides, Mapping):
        return [f"{key}={spelled(value)}" for key, value in overrides.items()]
    return list(overrides)


def search_path(config_dir: str | Path | None) -> list[str]:
    """Returns the override that lets Hydra find experiments in a folder; none for None."""
    if config_dir is None:
        return []
    return [f"hydra.searchpath=[{spelled(f'file://{Path(config_dir).absolute()}')}]"]
