"""The life of a run: compose, build, plan, restore, train, evaluate, record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.config import Mode, PlanFormat, RunConfig
from runner.errors import PlanError, Problem, RunDirectoryError, TrackingError
from runner.experiment import BuiltGraph
from runner.fingerprint import fingerprint
from runner.finished import evaluate_run, export_run
from runner.graph import build_graph
from runner.interruption import Interruption
from runner.restoration.html_report import html
from runner.restoration.json_report import json_text
from runner.restoration.plan import RestorationPlan
from runner.restoration.report import summary, table, text
from runner.run_directory import (
    RUNNING,
    RunDirectory,
    RunRecord,
    interrupted_run,
    left_alone,
    open_run,
    settle_killed_runs,
)
from runner.screen import Screen
from runner.sources import Sources, plan_run
from runner.tracking import RunStatus, RunStore, open_store
from runner.training import train_run


def run_experiment(
    config: RunConfig,
    overrides: Sequence[str] = (),
    screen: Screen | None = None,
    parent: str | None = None,
    *,
    dedicated: bool = False,
) -> float | None:
    """Does with an experiment what its `mode` says.

    Args:
      config: the validated configuration, from `runner.validation.validate`.
      overrides: the command line's overrides, recorded with the run.
      screen: where to print; by default standard output.
      parent: id of the tracked run that this one is a part of, such as a sweep.
      dedicated: whether `run_dir` was given for this run; an interrupted run in it with another
        warm start is then refused, where otherwise a new run is made beside it.

    Returns:
      The best objective of a training run, the test metrics' objective of an evaluation, and None
      for a plan or an export.

    Raises:
      RunnerError: see its subclasses in `runner.errors`; `InterruptedRunError` after a signal.
    """
    screen = screen or Screen()
    store = open_store(config.tracking.uri)
    sources = Sources(config, store)
    if config.mode is Mode.plan:
        _show_plan(config, sources, screen, dedicated)
        return None
    if config.mode is Mode.train:
        return _train(config, sources, store, overrides, screen, parent, dedicated)
    identity = fingerprint(sources.settings())
    if config.mode is Mode.evaluate:
        return evaluate_run(config, identity, store, screen)
    export_run(config, identity, screen)
    return None


def _show_plan(config: RunConfig, sources: Sources, screen: Screen, dedicated: bool) -> None:
    refused: tuple[Problem, ...] = ()
    resumed = None
    try:
        resumed = _resumed(config, sources, dedicated)
    except RunDirectoryError as error:
        refused = error.problems
    plan = plan_run(config, build_graph(config, "validation", train=True), sources)
    full = config.plan.full
    if config.plan.format is PlanFormat.json:
        screen.write(json_text(plan))
    elif config.plan.format is PlanFormat.html:
        screen.write(html(plan, f"{config.name}: restoration plan", full=full))
    else:
        if resumed is not None:
            screen.line(f"mode=train would resume {resumed.path}: all from its own checkpoint")
            screen.line("this is the plan of a fresh start, resume=never:")
        screen.show(table(plan, full=full), text(plan, full=full))
    if plan.problems:
        count = len(plan.problems)
        listed = Problem(f"the plan has {count} problem{'s' * (count > 1)}, listed with it")
        raise PlanError(listed, *refused)
    if refused:
        raise RunDirectoryError(*refused)


def _resumed(config: RunConfig, sources: Sources, dedicated: bool) -> RunDirectory | None:
    """Returns the run that training would resume, carrying out no plan; None starts afresh.

    Raises:
      RunDirectoryError: when training would refuse to start here.
    """
    settings = sources.settings()
    record = RunRecord(config.name, fingerprint(settings), RUNNING, settings)
    found = interrupted_run(Path(config.run_dir), record, config.resume.value, dedicated=dedicated)
    return found if found is not None and found.has_checkpoint() else None


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
    # A mistake in the configuration is found before anything is made, then a problem of the plan,
    # then an unusable store.
    built = build_graph(config, "validation", train=True)
    resumed = interrupted_run(container, record, config.resume.value, dedicated=dedicated)
    plan = None
    if resumed is None or not resumed.has_checkpoint():
        plan = _sound_plan(config, built, sources)
    store.connect()
    if plan is not None:
        plan = _warm_start(config, built, sources, plan, screen)
    with Interruption().handled() as interruption:
        directory = open_run(container, record, config.resume.value, dedicated=dedicated)
        _settle(container, store, screen)
        # What another process has done since decides anew whether this is a warm start.
        if directory.has_checkpoint():
            plan = None
        elif plan is None:
            plan = _sound_plan(config, built, sources)
            plan = _warm_start(config, built, sources, plan, screen)
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


def _settle(container: Path, store: RunStore, screen: Screen) -> None:
    """Tells the store of runs that were killed outright, which it still takes for running."""
    for record in settle_killed_runs(container):
        if record.tracking_run_id is not None and record.tracking_uri == store.location():
            try:
                store.mark(record.tracking_run_id, RunStatus.KILLED)
            except TrackingError as error:
                screen.line(str(error))


def _warm_start(
    config: RunConfig, built: BuiltGraph, sources: Sources, plan: RestorationPlan, screen: Screen
) -> RestorationPlan:
    """Trains the sources that are experiments not trained yet; returns the plan from then on."""
    # Before an experiment is trained as a source, its graph tells what it will save, so that a
    # plan with problems is found before that training and not after it.
    if not sources.train_missing(lambda source: run_experiment(source, screen=screen)):
        return plan
    return _sound_plan(config, built, sources)


def _sound_plan(config: RunConfig, built: BuiltGraph, sources: Sources) -> RestorationPlan:
    plan = plan_run(config, built, sources)
    plan.require_sound()
    return plan
