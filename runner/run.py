"""The life of a run: build, locate and plan, train sources, claim, recover, restore and train.

The steps are methods of `Run` in `runner.training.run`, which holds what they share, or functions
that take the `Run`.
"""

from __future__ import annotations

import time
from pathlib import Path

from runner.config.choices import Mode, PlanFormat
from runner.config.schema import RunConfig
from runner.errors import PlanError, Problem, RunDirectoryError
from runner.restoration.html_report import html
from runner.restoration.json_report import json_text
from runner.restoration.plan import RestorationPlan
from runner.restoration.report import summary, table, text
from runner.runs.resumption import extension_lines, skipped_run_notice
from runner.runs.run_directory import RunRecord, mark_killed_runs
from runner.runs.saved_checkpoints import recover
from runner.system.signals import Interruption
from runner.training.evaluation import evaluate_run
from runner.training.export import export_run
from runner.training.loop import train_run
from runner.training.loop_hooks import configured_hooks
from runner.training.run import Run, RunContext


def run_experiment(config: RunConfig, context: RunContext | None = None) -> float | None:
    """Trains, plans, evaluates or exports an experiment, as its `mode` says.

    Args:
      config: the validated configuration, from `runner.validate`.
      context: overrides, screen, and what connects the run to a sweep or cluster; empty by default.

    Returns:
      For training the best objective, for an evaluation the objective on the evaluated split, and
      None for a plan or an export.

    Raises:
      RunnerError: see its subclasses in `runner.errors`; `InterruptedRunError` after a signal,
        `PrunedRunError` when the trial is pruned.
    """
    run = Run(config, context or RunContext())
    if config.mode is Mode.train:
        return train(run)
    if config.mode is Mode.evaluate:
        return evaluate_run(run)
    if config.mode is Mode.plan:
        show_plan(run)
    else:
        export_run(run)
    return None


def train(run: Run) -> float:
    """Trains a run to its end and returns the best objective.

    It resumes or extends an earlier run if `resume` says so and there is one.
    """
    # Configuration mistakes surface first, then plan problems, before anything is written.
    _ = run.built
    resumed = run.run_to_resume()
    # Opening the run changes its record.
    former = (resumed.path, resumed.load_record()) if resumed else None
    fresh = resumed is None or not resumed.has_checkpoint()
    if fresh:
        run.plan = _sound_plan(run)
        _train_sources(run)
    with Interruption(run.config.session.grace_seconds).handled() as interruption:
        run.open(interruption)
        with run.failing():
            run.coordinator.report_begun()
            for killed in mark_killed_runs(run.container):
                run.store.deliver_rest(killed.path)
            recover(run.directory, run.screen.line)
            # Another process may have changed the run since: decide again whether to warm-start.
            if run.directory.has_checkpoint():
                run.plan = None  # It resumes from its own checkpoint.
            elif run.plan is None:
                run.plan = _sound_plan(run)
                _train_sources(run)
            with run.built.graph.as_default():
                hooks = configured_hooks(run)
            _introduce(run, former)
        return train_run(run, hooks)


def show_plan(run: Run) -> None:
    """Shows where each variable's value would come from.

    Raises:
      PlanError: when the plan has problems.
      RunDirectoryError: when training would refuse to start here.
    """
    screen, full = run.screen, run.config.plan.full
    refused: tuple[Problem, ...] = ()
    resumed = None
    try:
        resumed = run.run_to_resume()
    except RunDirectoryError as error:
        refused = error.problems  # Raised after the plan is shown.
    plan = run.make_plan()
    placement = run.coordinator.replica.placement(run.built.variables)
    if run.config.plan.format is PlanFormat.json:
        screen.write(json_text(plan, placement.devices if placement else None))
    elif run.config.plan.format is PlanFormat.html:
        title = f"{run.config.name}: restoration plan"
        divisions = {placement.title: placement.by_device(plan)} if placement else {}
        screen.write(html(plan, title, divisions=divisions))
    else:
        if resumed is not None and resumed.has_checkpoint():
            screen.line(f"mode=train would resume {resumed.path}: all from its own checkpoint")
            screen.line("this is the plan of a fresh start, resume=never:")
        for note in run.built.notes:
            screen.line(note)
        screen.show(table(plan, full=full), text(plan, full=full))
        for line in placement.lines(plan, full=full) if placement else ():
            screen.line(line)
    if plan.problems:
        count = len(plan.problems)
        listed = Problem(f"the plan has {count} problem{'s' * (count > 1)}, listed with it")
        raise PlanError(listed, *refused)
    if refused:
        raise RunDirectoryError(*refused)


def _sound_plan(run: Run) -> RestorationPlan:
    plan = run.make_plan()
    plan.require_sound()
    return plan


def _train_sources(run: Run) -> None:
    """Trains the sources that are experiments not trained yet, and replans with them."""
    # The plan so far was made with what their graphs will save: a bad plan fails before training.
    context = RunContext(screen=run.screen)
    if run.sources.train_missing(lambda source: run_experiment(source, context), run.screen.line):
        run.plan = _sound_plan(run)
        run.started = time.monotonic()


def _introduce(run: Run, former: tuple[Path, RunRecord] | None) -> None:
    """Prints where the run is and what it starts from.

    Args:
      run: the run, opened.
      former: the run to resume that was found before it was opened, and its record then.
    """
    screen, path = run.screen, run.directory.path
    same = former is not None and former[0] == path
    extended = former is not None and same and former[1].fingerprint != run.fingerprint
    how = "resumes" if same or run.plan is None else "runs"
    steps = f", extended to step {run.config.train.steps}" if extended else ""
    screen.line(f"{run.config.name}: {how} in {path}{steps}")
    if not same and not run.record.trial:
        for line in skipped_run_notice(run.container, run.record, run.settings):
            screen.line(f"  {line}")
    own = ("own checkpoint: pretrained sources not read",)
    for line in (*run.built.notes, *(summary(run.plan) if run.plan else own)):
        screen.line(f"  {line}")
    if former is not None and extended:
        for line in extension_lines(former[1], run.record):
            screen.line(f"  {line}")
