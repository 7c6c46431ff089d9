"""Starts what a configuration asks for: for the command line, from Python and for trials alike."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from runner.api.door import unchanged_process
from runner.api.result import Result
from runner.cluster.local import LocalCluster, task_command
from runner.config.choices import SCAFFOLDS, Mode
from runner.config.cluster import resolve_cluster, resolve_trial
from runner.config.cluster_spec import is_task, launches
from runner.config.composition import experiment_names
from runner.config.groups import shipped
from runner.config.masked_output import hide
from runner.config.masking import Mask
from runner.config.schema import EVALUATOR, PS, WORKER, RunConfig
from runner.config.validation import is_from_run_dir, validate
from runner.errors import ConfigError
from runner.runs.recorded_config import recorded_config
from runner.runs.run_directory import runs
from runner.sweeps.job import job_of, run_attempt
from runner.system.imports import import_tensorflow
from runner.system.signals import Interruption
from runner.tracking import start_delivery
from runner.training.context import RunContext


def start(config: Any, context: RunContext) -> Result:
    """Runs a configuration that Hydra has composed, as its `mode` and its cluster say.

    It is the start of every run: of a command, of `runner.run` and `runner.fit`, of a trial of a
    sweep and of a task of a cluster. TensorFlow is imported once the configuration is right.

    Args:
      config: the composed configuration, a mapping or a `RunConfig`.
      context: what the command gives besides it.

    Raises:
      RunnerError: see its subclasses in `runner.errors`.
    """
    if isinstance(config, DictConfig) and is_from_run_dir(config):
        config = recorded_config(config, context.overrides)
        context = replace(context, from_run_dir=True)
    sweeps = HydraConfig.get().mode == RunMode.MULTIRUN
    resolve = resolve_trial if sweeps else resolve_cluster
    valid = resolve(validate(config, experiment_names()), os.environ)
    hide(Mask(valid.tracking.mask, asdict(valid)))
    if launches(valid):
        return _launch(valid)
    if valid.mode is Mode.train and is_task(valid.cluster, PS, WORKER, EVALUATOR):
        return _run_task(valid, context)
    if valid.mode is Mode.train:
        start_delivery(valid.tracking)  # Its imports overlap those below.
    import_tensorflow("runner.lifecycle")
    with unchanged_process():
        return _run(valid, context, is_trial=sweeps)


def start_job(config: DictConfig, context: RunContext) -> float | None:
    """Starts the run of Hydra's job, and returns its objective.

    A job of one of our sweepers is an attempt at a trial.
    """
    job = job_of(HydraConfig.get())
    if job is None:
        return start(config, context).objective
    return run_attempt(job, lambda trial: start(config, replace(context, watch=trial)).objective)


def _launch(config: RunConfig) -> Result:
    """Trains by the tasks of a local cluster, each of which starts as this process did."""
    command = task_command(HydraConfig.get(), shipped("conf"))
    LocalCluster(config.cluster, command, save_seconds=config.session.grace_seconds).run()
    return Result(config, next((run.path for run, _ in runs(Path(config.run_dir))), None))


def _run_task(config: RunConfig, context: RunContext) -> Result:
    if context.keeps_process:
        remedy = "start each with the command line: runner +experiment=NAME"
        raise ConfigError.of("this process is a task of a cluster", remedy=remedy)
    import_tensorflow("runner.lifecycle")
    from runner.cluster.chief import run_task

    with unchanged_process():
        run_task(config)
    return Result(config)


def _run(config: RunConfig, context: RunContext, *, is_trial: bool) -> Result:
    from runner.cluster.chief import coordinator_of
    from runner.lifecycle import perform
    from runner.restoration.eager_plan import WarmStartPlan
    from runner.training.experiment import Experiment

    seconds = config.session.grace_seconds
    handling = Interruption(seconds, keeps_process=context.keeps_process).handled()
    with handling as interruption:
        experiment = Experiment(config, context, coordinator_of(config))
        outcome = perform(experiment)
        if is_trial and context.watch.parent is None:
            interruption.check()  # The sweeper of another package would start the next trial.
    directory, plan = outcome.directory, outcome.plan
    if config.mode not in (Mode.train, Mode.plan):
        settings = getattr(config, config.mode.value)
        directory = None if settings.which == SCAFFOLDS else experiment.finished_run().path
    if plan is not None:
        origins = experiment.sources.origins()
        plan = WarmStartPlan(**vars(plan), origins=origins, model=config.name)
    return Result(config, directory, plan, outcome.metrics, objective=outcome.objective)
