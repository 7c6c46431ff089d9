"""The life of a run: compose, build, plan, restore, train, evaluate, record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from runner.cluster.placement import placement_lines
from runner.cluster.tasks import is_cluster
from runner.config import Mode, PlanFormat, Resume, RunConfig
from runner.errors import PlanError, Problem
from runner.experiment import BuiltGraph
from runner.fingerprint import fingerprint
from runner.finished import evaluate_run, export_run
from runner.graph import build_graph
from runner.interruption import Interruption
from runner.restoration.html_report import html
from runner.restoration.json_report import json_text
from runner.restoration.plan import RestorationPlan
from runner.restoration.planner import make_plan
from runner.restoration.report import summary, table, text
from runner.run_directory import (
    RUNNING,
    RunRecord,
    interrupted_run,
    left_alone,
    open_run,
    settle_killed_runs,
)
from runner.screen import Screen
from runner.sources import Sources
from runner.tracking import FollowerProcess, RunStore, open_store
from runner.training import train_run


def run_experiment(
    config: RunConfig,
    overrides: Sequence[str] = (),
    screen: Screen | None = None,
    parent: str | None = None,
    follower: FollowerProcess | None = None,
    *,
    dedicated: bool = False,
) -> float | None:
    """Does with an experiment what its `mode` says.

    Args:
      config: the validated configuration, from `runner.validation.validate`.
      overrides: the command line's overrides, recorded with the run.
      screen: where to print; by default standard output.
      parent: directory of the tracked run that this one is a part of, such as a sweep.
      follower: a process started ahead that delivers what the run records.
      dedicated: whether `run_dir` was given for this run; an interrupted run in it with another
        warm start is then refused, where otherwise a new run is made beside it.

    Returns:
      The best objective of a training run, the test metrics' objective of an evaluation, and None
      for a plan or an export.

    Raises:
      RunnerError: see its subclasses in `runner.errors`; `InterruptedRunError` after a signal.
    """
    screen = screen or Screen()
    store = open_store(config.tracking, asdict(config), follower)
    sources = Sources(config, store)
    if config.mode is Mode.plan:
        _show_plan(config, sources, screen)
        return None
    if config.mode is Mode.train:
        return _train(config, sources, store, overrides, screen, parent, dedicated)
    identity = fingerprint(sources.settings())
    if config.mode is Mode.evaluate:
        return evaluate_run(config, identity, store, screen)
    export_run(config, identity, screen)
    return None


def _show_plan(config: RunConfig, sources: Sources, screen: Screen) -> None:
    built = build_graph(config, "validation", train=True)
    plan = _plan(config, built, sources)
    full = config.plan.full
    devices = {}
    if is_cluster(config.cluster):
        devices = {name: variable.device for name, variable in built.variables.items()}
    if config.plan.format is PlanFormat.json:
        screen.write(json_text(plan, devices))
    elif config.plan.format is PlanFormat.html:
        screen.write(html(plan, f"{config.name}: restoration plan", full=full))
    else:
        _show_resume(config, sources, screen)
        screen.show(table(plan, full=full), text(plan, full=full))
        if devices:
            strategy = config.cluster.placement.value
            for line in placement_lines(built.specs, devices, strategy, full=full):
                screen.line(line)
    if plan.problems:
        count = len(plan.problems)
        raise PlanError(Problem(f"the plan has {count} problem{'s' * (count > 1)}, listed with it"))


def _show_resume(config: RunConfig, sources: Sources, screen: Screen) -> None:
    """Says so where training would resume a run, and carry out no plan."""
    if config.resume is Resume.never:
        return
    settings = sources.settings()
    record = RunRecord(config.name, fingerprint(settings), RUNNING, settings)
    resumed = interrupted_run(Path(config.run_dir), record, config.resume.value)
    if resumed is not None and resumed.has_checkpoint():
        screen.line(f"mode=train would resume {resumed.path}: all from its own checkpoint")
        screen.line("this is the plan of a fresh start, resume=never:")


def _train(
    config: RunConfig,
    sources: Sources,
    store: RunStore,
    overrides: Sequence[str],
    screen: Screen,
    parent: str | None,
    dedicated: bool,
) -> float:
    settings = sources.settings()
    record = RunRecord(config.name, fingerprint(settings), RUNNING, settings)
    container = Path(config.run_dir)
    # A mistake in the configuration is found before anything is made, then an unusable store.
    built = build_graph(config, "validation", train=True)
    store.connect()
    resumed = interrupted_run(container, record, config.resume.value, dedicated=dedicated)
    plan = None
    if resumed is None or not resumed.has_checkpoint():
        plan = _warm_start(config, built, sources, screen)
    with Interruption().handled() as interruption:
        directory = open_run(container, record, config.resume.value, dedicated=dedicated)
        for killed in settle_killed_runs(container):
            store.settle(killed.path)
        # What another process has done since decides anew whether this is a warm start.
        if directory.has_checkpoint():
            plan = None
        elif plan is None:
            plan = _warm_start(config, built, sources, screen)
        same = resumed is not None and resumed.path == directory.path
        verb = "resumes" if same or plan is None else "runs"
        screen.line(f"{config.name}: {verb} in {directory.path}")
        if directory.path != (resumed and resumed.path) and parent is None:
            for line in left_alone(container, record):
                screen.line(f"  {line}")
        for line in summary(plan) if plan else ("own checkpoint: pretrained sources not read",):
            screen.line(f"  {line}")
        return train_run(
            config, built, plan, sources, directory, store, overrides, screen, interruption, parent
        )


def _warm_start(
    config: RunConfig, built: BuiltGraph, sources: Sources, screen: Screen
) -> RestorationPlan:
    """Returns a sound plan, after training the sources that are experiments not trained yet."""
    # Before an experiment is trained as a source, its graph tells what it will save, so that a
    # plan with problems is found now and not after that training.
    _plan(config, built, sources).require_sound()
    sources.train_missing(lambda source: run_experiment(source, screen=screen))
    plan = _plan(config, built, sources)
    plan.require_sound()
    return plan


def _plan(config: RunConfig, built: BuiltGraph, sources: Sources) -> RestorationPlan:
    return make_plan(
        built.specs,
        config.scaffolds,
        sources.expected(),
        config.restoration.collision,
        config.restoration.expect,
    )
