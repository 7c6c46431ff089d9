"""The life of a run: compose, build, plan, restore, train, evaluate, record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.config import Mode, PlanFormat, RunConfig
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
from runner.run_directory import RUNNING, RunRecord, interrupted_run, open_run
from runner.screen import Screen
from runner.sources import Sources
from runner.tracking import RunStore, open_store
from runner.training import train_run


def run_experiment(
    config: RunConfig, overrides: Sequence[str] = (), screen: Screen | None = None
) -> float | None:
    """Does with an experiment what its `mode` says.

    Args:
      config: the validated configuration, from `runner.validation.validate`.
      overrides: the command line's overrides, recorded with the run.
      screen: where to print; by default standard output.

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
        _show_plan(config, sources, screen)
        return None
    if config.mode is Mode.train:
        return _train(config, sources, store, overrides, screen)
    identity = fingerprint(sources.settings())
    if config.mode is Mode.evaluate:
        return evaluate_run(config, identity, store, screen)
    export_run(config, identity, screen)
    return None


def _show_plan(config: RunConfig, sources: Sources, screen: Screen) -> None:
    plan = _plan(config, build_graph(config, "validation", train=True), sources)
    full = config.plan.full
    if config.plan.format is PlanFormat.json:
        screen.write(json_text(plan))
    elif config.plan.format is PlanFormat.html:
        screen.write(html(plan, f"{config.name}: restoration plan", full=full))
    else:
        screen.show(table(plan, full=full), text(plan, full=full))
    plan.require_sound()


def _train(
    config: RunConfig, sources: Sources, store: RunStore, overrides: Sequence[str], screen: Screen
) -> float:
    settings = sources.settings()
    record = RunRecord(config.name, fingerprint(settings), RUNNING, settings)
    container = Path(config.run_dir)
    built = build_graph(config, "validation", train=True)
    resumed = interrupted_run(container, record, config.resume.value)
    plan = None
    if resumed is None or not resumed.has_checkpoint():
        # Before an experiment is trained as a source, its graph tells what it will save, so that a
        # plan with problems is found now and not after that training.
        _plan(config, built, sources).require_sound()
        sources.train_missing(lambda source: run_experiment(source, screen=screen))
        plan = _plan(config, built, sources)
        plan.require_sound()
    with Interruption().handled() as interruption:
        directory = open_run(container, record, config.resume.value)
        screen.line(f"{config.name}: {'resumes' if resumed else 'runs'} in {directory.path}")
        for line in summary(plan) if plan else ("own checkpoint: pretrained sources not read",):
            screen.line(f"  {line}")
        return train_run(config, built, plan, directory, store, overrides, screen, interruption)


def _plan(config: RunConfig, built: BuiltGraph, sources: Sources) -> RestorationPlan:
    return make_plan(
        built.specs,
        config.scaffolds,
        sources.expected(),
        config.restoration.collision,
        config.restoration.expect,
    )
