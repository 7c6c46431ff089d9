"""The life of a run: build, locate and plan, train sources, claim, recover, restore and train.

The steps are methods of `Experiment` in `runner.training.experiment`, before there is a run
directory, and functions that take an `OpenedRun` afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.config.choices import Mode, PlanFormat, Resume
from runner.config.schema import RunConfig
from runner.config.training_schema import metric_of
from runner.console import PIPED
from runner.errors import PlanError, Problem, RunDirectoryError
from runner.graph.built_graph import BuiltGraph
from runner.planning.html_report import html
from runner.planning.json_report import json_text
from runner.planning.plan import RestorationPlan
from runner.planning.report import summary, table, text
from runner.runs.resumption import StartKind, claimed_run
from runner.system.atomic_files import disk_errors
from runner.system.signals import Interruption
from runner.system.user_code import raised
from runner.training.context import RunContext
from runner.training.evaluate_run import evaluate_run
from runner.training.experiment import Experiment, OpenedRun
from runner.training.export import export_run
from runner.training.extension import require_variables
from runner.training.loop import train_run
from runner.training.loop_hooks import configured_hooks
from runner.training.prediction import predict_run


@dataclass(frozen=True)
class Outcome:
    """The result of an experiment's mode.

    Attributes:
      objective: the best one of a training, or the one that an evaluation computed.
      directory: the run directory of training.
      plan: where variables came from; None where a run continued from its own checkpoint.
      metrics: what an evaluation computed.
    """

    objective: float | None = None
    directory: Path | None = None
    plan: RestorationPlan | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def run_experiment(config: RunConfig, context: RunContext | None = None) -> float | None:
    """Trains, plans, evaluates or exports an experiment, as its `mode` says.

    Args:
      config: the validated configuration, from `runner.validate`.
      context: overrides, screen and the trial of a sweep; empty by default.

    Returns:
      For training the best objective, for an evaluation the objective on the evaluated split, and
      None for a plan or an export.

    Raises:
      RunnerError: see its subclasses in `runner.errors`; `InterruptedRunError` after a signal,
        `PrunedRunError` when the trial is pruned.
    """
    return perform(Experiment(config, context or RunContext())).objective


def perform(experiment: Experiment) -> Outcome:
    """Does what the `mode` of an experiment says; raises as `run_experiment` does."""
    config = experiment.config
    try:
        with disk_errors(experiment.container), experiment.recorder.active():
            if config.mode is Mode.train:
                return train(experiment)
            if config.mode is Mode.evaluate:
                metrics = evaluate_run(experiment)
                name = metric_of(config.train.objective)
                objective = metrics.get(name, next(iter(metrics.values())))
                experiment.context.watch.check(objective)
                return Outcome(objective, metrics=metrics)
            if config.mode is Mode.plan:
                return Outcome(plan=show_plan(experiment))
            if config.mode is Mode.predict:
                predict_run(experiment)
            else:
                export_run(experiment)
    except SystemExit as error:  # Most calls of user code report it with their key.
        raise raised("the experiment's code", error) from error
    return Outcome()


def train(experiment: Experiment) -> Outcome:
    """Trains a run to its end.

    It resumes or extends an earlier run if `resume` says so and there is one.
    """
    screen, coordinator = experiment.screen, experiment.coordinator
    # Configuration mistakes surface first, then plan problems, before anything is written.
    built = experiment.build()
    preview = experiment.preview_resumed()
    fresh_start = None
    if preview is not None and preview.has_checkpoint():
        if experiment.config.resume is Resume.extend:
            require_variables(experiment, built, preview)
    else:
        fresh_start = _plan_fresh_start(experiment, built)
    with Interruption(experiment.config.session.grace_seconds).handled() as interruption:
        with claimed_run(experiment.resume_criteria, interruption, screen.line) as claimed:
            coordinator.report_begun()
            for killed in claimed.killed:
                experiment.store.deliver_rest(killed.path)
            # Now nothing but this process changes the run: its checkpoint beats any warm start.
            if claimed.directory.has_checkpoint():
                plan = None
            else:
                plan = fresh_start or _plan_fresh_start(experiment, built)
            run = OpenedRun(experiment, built, claimed, plan=plan, interruption=interruption)
            hooks = configured_hooks(run)
            _introduce(run)
        return Outcome(train_run(run, hooks), run.directory.path, plan)


def show_plan(experiment: Experiment) -> RestorationPlan:
    """Shows, and returns, where each variable's value would come from.

    Raises:
      PlanError: when the plan has problems.
      RunDirectoryError: when training would refuse to start here.
    """
    screen, full = experiment.screen, experiment.config.plan.full
    refused: tuple[Problem, ...] = ()
    resumed = None
    try:
        resumed = experiment.preview_resumed()
    except RunDirectoryError as error:
        refused = error.problems  # Raised after the plan is shown.
    built = experiment.build()
    plan = experiment.prove(built, experiment.make_plan(built))
    placement = experiment.coordinator.replica.placement(built.variables)
    if experiment.config.plan.format is PlanFormat.json:
        screen.write(json_text(plan, placement.devices if placement else None))
    elif experiment.config.plan.format is PlanFormat.html:
        title = f"{experiment.config.name}: restoration plan"
        divisions = {placement.title: placement.by_device(plan)} if placement else {}
        screen.write(html(plan, title, divisions=divisions))
    else:
        if resumed is not None and resumed.has_checkpoint():
            screen.line(f"mode=train would resume {resumed.path}: all from its own checkpoint")
            screen.line("this is the plan of a fresh start, resume=never:")
        screen.show(table(plan, full=full), text(plan, full=full, width=PIPED))
        for line in placement.lines(plan, full=full) if placement else ():
            screen.line(line)
    if plan.problems:
        count = len(plan.problems)
        listed = Problem(f"the plan has {count} problem{'s' * (count > 1)}, listed with it")
        raise PlanError(listed, *refused)
    if refused:
        raise RunDirectoryError(*refused)
    return plan


def _plan_fresh_start(experiment: Experiment, built: BuiltGraph) -> RestorationPlan:
    """Plans a start without a checkpoint of the run; trains sources that are not trained yet."""
    experiment.store.require_usable()
    # The first plan takes what their graphs will save: a bad plan fails before they are trained.
    plan = experiment.make_sound_plan(built)
    context = RunContext(screen=experiment.screen)
    with Interruption(experiment.config.session.grace_seconds).handled() as interruption:

        def train_source(source: RunConfig) -> None:
            run_experiment(source, context)
            interruption.check()  # A signal while it was closed ends this run too.

        trained = experiment.sources.train_missing(train_source, experiment.screen.line)
    return experiment.make_sound_plan(built) if trained else plan


def _introduce(run: OpenedRun) -> None:
    """Prints where the run is and what it starts from."""
    screen = run.screen
    how = "runs" if run.start is StartKind.new else "resumes"
    extended = run.former if run.start is StartKind.extended else None
    steps = f", extended to step {run.config.train.steps}" if extended else ""
    screen.line(f"{run.config.name}: {how} in {run.directory.path}{steps}")
    notes = [*run.notice, *run.built.notes]
    if run.plan is None:
        notes.append("restores this run's checkpoint, and reads no pretrained one")
    else:
        notes += summary(run.plan)
    for note in notes:
        screen.line(f"  {note}")
