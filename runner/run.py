"""The life of a run: compose, build, plan, restore, train, evaluate, record."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from runner.cluster.replica import Replica
from runner.config.choices import Mode, PlanFormat
from runner.config.cluster_tasks import is_task
from runner.config.fingerprint import fingerprint
from runner.config.masking import Mask
from runner.config.schema import CHIEF, RunConfig
from runner.console import Screen
from runner.errors import PlanError, Problem, RunDirectoryError
from runner.graph.build import build_graph
from runner.graph.experiment import BuiltGraph
from runner.restoration.html_report import html
from runner.restoration.json_report import json_text
from runner.restoration.plan import RestorationPlan
from runner.restoration.report import summary, table, text
from runner.runs.run_directory import (
    RunDirectory,
    RunRecord,
    interrupted_run,
    left_alone,
    open_run,
    settle_killed_runs,
)
from runner.runs.saved_checkpoints import recover
from runner.sweeps.trial import Trial
from runner.system.lifeline import tell_begun
from runner.system.signals import Interruption
from runner.system.status import Status
from runner.tracking import open_store
from runner.training.context import RunContext
from runner.training.evaluation import evaluate_run, export_run
from runner.training.loop import train_run
from runner.training.sources import Sources, plan_run


def run_experiment(
    config: RunConfig,
    overrides: Sequence[str] = (),
    screen: Screen | None = None,
    trial: Trial | None = None,
    *,
    dedicated: bool = False,
) -> float | None:
    """Does with an experiment what its `mode` says.

    Args:
      config: the validated configuration, from `runner.config.validation.validate`.
      overrides: the command line's overrides, recorded with the run.
      screen: where to print; by default standard output.
      trial: the sweep's trial that this run is, which is told how it goes.
      dedicated: whether `run_dir` was given for this run; an interrupted run in it with another
        warm start is then refused, where otherwise a new run is made beside it.

    Returns:
      The best objective of a training run, the test metrics' objective of an evaluation, and None
      for a plan or an export.

    Raises:
      RunnerError: see its subclasses in `runner.errors`; `InterruptedRunError` after a signal,
        `PrunedRunError` when the trial is pruned.
    """
    screen = screen or Screen()
    store = open_store(config.tracking, asdict(config))
    sources = Sources(config, store)
    context = RunContext(config, sources, store, screen, overrides, trial, dedicated)
    if config.mode is Mode.plan:
        _show_plan(context)
        return None
    if config.mode is Mode.train:
        return _train(context)
    identity = fingerprint(sources.settings())
    if config.mode is Mode.evaluate:
        return evaluate_run(config, identity, store, screen)
    export_run(config, identity, store, screen)
    return None


def _show_plan(context: RunContext) -> None:
    config, screen = context.config, context.screen
    refused: tuple[Problem, ...] = ()
    resumed = None
    try:
        resumed = _resumed(context)
    except RunDirectoryError as error:
        refused = error.problems
    built = build_graph(config, "validation", train=True)
    plan = plan_run(config, built, context.sources)
    full = config.plan.full
    placement = Replica(config.cluster).placement(built.variables)
    if config.plan.format is PlanFormat.json:
        screen.write(json_text(plan, placement.devices if placement else None))
    elif config.plan.format is PlanFormat.html:
        title = f"{config.name}: restoration plan"
        screen.write(html(plan, title, full=full, placement=placement))
    else:
        if resumed is not None:
            screen.line(f"mode=train would resume {resumed.path}: all from its own checkpoint")
            screen.line("this is the plan of a fresh start, resume=never:")
        screen.show(table(plan, full=full), text(plan, full=full))
        for line in placement.lines(plan, full=full) if placement else ():
            screen.line(line)
    if plan.problems:
        count = len(plan.problems)
        listed = Problem(f"the plan has {count} problem{'s' * (count > 1)}, listed with it")
        raise PlanError(listed, *refused)
    if refused:
        raise RunDirectoryError(*refused)


def _resumed(context: RunContext) -> RunDirectory | None:
    """Returns the run that training would resume, carrying out no plan; None starts afresh.

    Raises:
      RunDirectoryError: when training would refuse to start here.
    """
    config = context.config
    container, resume = Path(config.run_dir), config.resume.value
    found = interrupted_run(container, _record(context), resume, dedicated=context.dedicated)
    return found if found is not None and found.has_checkpoint() else None


def _train(context: RunContext) -> float:
    config, store, screen = context.config, context.store, context.screen
    container, record, resume = Path(config.run_dir), _record(context), config.resume.value
    # A mistake in the configuration is found before anything is made, then a problem of the plan,
    # then an unusable store.
    built = build_graph(config, "validation", train=True)
    resumed = interrupted_run(container, record, resume, dedicated=context.dedicated)
    plan = None
    if resumed is None or not resumed.has_checkpoint():
        plan = _sound_plan(context, built)
    if plan is not None:
        plan = _warm_start(context, built, plan)
    with Interruption(config.session.grace_seconds).handled() as interruption:
        directory = open_run(container, record, resume, dedicated=context.dedicated)
        if is_task(config.cluster, CHIEF):
            tell_begun(os.environ)
        for killed in settle_killed_runs(container):
            store.settle(killed.path)
        recover(directory, screen.line)
        # What another process has done since decides anew whether this is a warm start.
        if directory.has_checkpoint():
            plan = None
        elif plan is None:
            plan = _warm_start(context, built, _sound_plan(context, built))
        same = resumed is not None and resumed.path == directory.path
        verb = "resumes" if same or plan is None else "runs"
        screen.line(f"{config.name}: {verb} in {directory.path}")
        if directory.path != (resumed and resumed.path) and context.trial is None:
            for line in left_alone(container, record):
                screen.line(f"  {line}")
        for line in summary(plan) if plan else ("own checkpoint: pretrained sources not read",):
            screen.line(f"  {line}")
        return train_run(context, built, plan, directory, interruption)


def _record(context: RunContext) -> RunRecord:
    config, settings, trial = context.config, context.sources.settings(), context.trial
    mask = Mask(config.tracking.mask, asdict(config))
    return RunRecord(
        config.name,
        fingerprint(settings),
        Status.RUNNING,
        mask.settings(settings),
        trial=trial.name(Path(config.run_dir)) if trial is not None else "",
    )


def _warm_start(context: RunContext, built: BuiltGraph, plan: RestorationPlan) -> RestorationPlan:
    """Trains the sources that are experiments not trained yet; returns the plan from then on."""
    # Before an experiment is trained as a source, its graph tells what it will save, so that a
    # plan with problems is found before that training and not after it.
    screen = context.screen
    trained = context.sources.train_missing(
        lambda source: run_experiment(source, screen=screen), screen.line
    )
    if not trained:
        return plan
    return _sound_plan(context, built)


def _sound_plan(context: RunContext, built: BuiltGraph) -> RestorationPlan:
    plan = plan_run(context.config, built, context.sources)
    plan.require_sound()
    return plan
