"""The life of a run: locate, build, plan, restore, train, evaluate, record."""

from __future__ import annotations

from runner.config.choices import Mode, PlanFormat
from runner.config.schema import RunConfig
from runner.errors import PlanError, Problem, RunDirectoryError
from runner.restoration.html_report import html
from runner.restoration.json_report import json_text
from runner.restoration.plan import RestorationPlan
from runner.restoration.report import summary, table, text
from runner.runs.run_directory import RunDirectory, left_alone, settle_killed_runs
from runner.runs.saved_checkpoints import recover
from runner.system.signals import Interruption
from runner.training.evaluation import evaluate_run
from runner.training.export import export_run
from runner.training.loop import train_run
from runner.training.run import Run, Surroundings


def run_experiment(config: RunConfig, around: Surroundings | None = None) -> float | None:
    """Trains, plans, evaluates or exports an experiment, by its `mode`.

    Args:
      config: the validated configuration, from `runner.validate`.
      around: what the command gives besides; by default nothing.

    Returns:
      The best objective of a training run, the test metrics' objective of an evaluation, and None
      for a plan or an export.

    Raises:
      RunnerError: see its subclasses in `runner.errors`; `InterruptedRunError` after a signal,
        `PrunedRunError` when the trial is pruned.
    """
    run = Run(config, around or Surroundings())
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
    """Trains a run to its end, resuming what was interrupted; returns the best objective."""
    # A mistake in the configuration is found before anything is made, then a problem of the plan.
    run.build()
    resumed = run.interrupted()
    fresh = resumed is None or not resumed.has_checkpoint()
    if fresh:
        run.plan = _sound_plan(run)
    if fresh:
        _train_sources(run)
    with Interruption(run.config.session.grace_seconds).handled() as interruption:
        run.open(interruption)
        run.coordinator.begun()
        for killed in settle_killed_runs(run.container):
            run.store.settle(killed.path)
        recover(run.directory, run.screen.line)
        # What another process has done since decides anew whether this is a warm start.
        if run.directory.has_checkpoint():
            run.plan = None
        elif run.plan is None:
            run.plan = _sound_plan(run)
            _train_sources(run)
        _introduce(run, resumed)
        return train_run(run)


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
        resumed = run.interrupted()
    except RunDirectoryError as error:
        refused = error.problems
    plan = run.make_plan()
    placement = run.coordinator.replica.placement(run.built.variables)
    if run.config.plan.format is PlanFormat.json:
        screen.write(json_text(plan, placement.devices if placement else None))
    elif run.config.plan.format is PlanFormat.html:
        title = f"{run.config.name}: restoration plan"
        screen.write(html(plan, title, full=full, placement=placement))
    else:
        if resumed is not None and resumed.has_checkpoint():
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


def _sound_plan(run: Run) -> RestorationPlan:
    plan = run.make_plan()
    plan.require_sound()
    return plan


def _train_sources(run: Run) -> None:
    """Trains the sources that are experiments not trained yet, and plans anew with them."""
    # Before an experiment is trained as a source, its graph says what it will save, so that a plan
    # with problems is found before that training and not after it.
    around = Surroundings(screen=run.screen)
    if run.sources.train_missing(lambda source: run_experiment(source, around), run.screen.line):
        run.plan = _sound_plan(run)


def _introduce(run: Run, expected: RunDirectory | None) -> None:
    """Says where the run is and what it starts from.

    Args:
      run: the run, opened.
      expected: the interrupted run that was found before.
    """
    screen, path = run.screen, run.directory.path
    same = expected is not None and expected.path == path
    screen.line(f"{run.config.name}: {'resumes' if same or run.plan is None else 'runs'} in {path}")
    if not same and not run.record.trial:
        for line in left_alone(run.container, run.record):
            screen.line(f"  {line}")
    own = ("own checkpoint: pretrained sources not read",)
    for line in summary(run.plan) if run.plan else own:
        screen.line(f"  {line}")
