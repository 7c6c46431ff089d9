"""An experiment and the run that trains it, and what connects them to a sweep or a cluster.

A run may train together with the tasks of a cluster, and a sweep may watch it. By default there is
neither: `runner.cluster` extends `Coordinator`, and `runner.sweeps` the `TrialWatch` of `context`;
nothing in a run imports those rooms.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import tensorflow as tf

from runner.config.epochs import Epochs
from runner.config.fingerprint import fingerprint
from runner.config.masking import Mask
from runner.config.schedule import NEVER, as_schedule
from runner.config.schema import RunConfig
from runner.config.training_schema import EVALUATE_EVERY, OBJECTIVE
from runner.errors import RunDirectoryError
from runner.graph.build import build_graph
from runner.graph.built_graph import BuiltGraph
from runner.graph.devices import devices_of
from runner.graph.replica import Replica
from runner.planning.plan import RestorationPlan
from runner.restoration.restorer import Restorer
from runner.runs.provenance import environment_tags
from runner.runs.resumption import (
    ClaimedDirectory,
    ResumeCriteria,
    StartKind,
    interrupted_run,
    no_such_run,
)
from runner.runs.run_directory import RunDirectory, RunRecord, runs, usable_container
from runner.session.monitored_session import ChiefSessionCreator
from runner.system.signals import Interruption
from runner.system.status import Status
from runner.tracking import Tracker, open_store
from runner.tracking.current_run import CurrentRun
from runner.tracking.stored_runs import RUN_DIR_TAG
from runner.training.context import SWEEP_TAG, RunContext
from runner.training.plan_proof import proven
from runner.training.run_sources import FINGERPRINT_TAG, Sources, plan_run

_Hooks: TypeAlias = Sequence[tf.compat.v1.train.SessionRunHook]

# Computed once: a process runs the code that it has imported, even if files have changed since.
process_tags = lru_cache(maxsize=1)(environment_tags)


class Coordinator:
    """Connects a run to the other tasks that train the model; by default there are none.

    Attributes:
      replica: this process's copy of the graph.
    """

    replica: Replica = Replica()

    def report_begun(self) -> None:
        """Reports that the run is begun or resumed."""

    def is_trained(self, run: OpenedRun) -> bool:
        """Whether an earlier process has trained the run to its end, but not closed its record."""
        return False

    def session_creator(self, run: OpenedRun, **arguments: Any) -> ChiefSessionCreator:
        """Returns the creator of the run's sessions; see its class for the arguments."""
        settings = run.config.session
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=settings.intra_op_threads,
            inter_op_parallelism_threads=settings.inter_op_threads,
            allow_soft_placement=True,
        )
        devices_of(run.config.devices).prepare(config)
        return ChiefSessionCreator(config=config, **arguments)

    def hooks(self, run: OpenedRun) -> tuple[_Hooks, _Hooks]:
        """Returns the hooks that come before and after all others."""
        return (), ()

    def share_values(self, run: OpenedRun, session: tf.compat.v1.Session) -> None:
        """Gives values of the session that no step has changed to all devices."""
        if run.training.to_devices is not None:
            session.run(run.training.to_devices)

    def session_scope(self, run: OpenedRun) -> AbstractContextManager[object]:
        """Surrounds the run's session."""
        return nullcontext()


class Experiment:
    """A configuration and what follows from it before there is a run directory.

    Attributes:
      config: the validated configuration.
      context: what the command gives besides it.
      coordinator: leads the other tasks of a cluster.
      screen: where to print.
      mask: hides secrets in what is recorded.
      recorder: what one's own code records to the run, as `runner.current_run()`.
      store: where runs are recorded.
      sources: the checkpoints that the configuration names.
      container: the configured `run_dir`.
    """

    def __init__(
        self, config: RunConfig, context: RunContext, coordinator: Coordinator | None = None
    ) -> None:
        self.config, self.context, self.screen = config, context, context.screen
        self.coordinator = coordinator or Coordinator()
        self.mask = Mask(config.tracking.mask, asdict(config))
        self.container = usable_container(config, self.mask)
        self.recorder = CurrentRun(self.mask)
        self.store = open_store(config.tracking, asdict(config), self.mask)
        self.sources = Sources(config, self.store)

    @cached_property
    def settings(self) -> dict[str, object]:
        """The settings that decide the result, including settings of the sources' experiments."""
        return self.sources.identity.settings()

    @cached_property
    def record(self) -> RunRecord:
        """The record with which a new run starts."""
        return RunRecord(
            self.config.name,
            fingerprint(self.settings),
            Status.RUNNING,
            self.mask.settings(self.settings),
            trial=self.context.watch.name(self.container),
        )

    def build(self) -> BuiltGraph:
        """Builds the graph that trains, and evaluates the validation split; not finalised.

        Raises:
          ConfigError: when a `_target_` cannot be built or does not keep its contract.
        """
        replica = self.coordinator.replica
        return build_graph(
            self.config, "validation", train=True, replica=replica, rereads=self._rereads()
        )

    def _rereads(self) -> bool:
        """Whether the run to resume ended by an error of its data, which it has read ahead."""
        with suppress(RunDirectoryError):  # Raised when the run is claimed.
            former = self.preview_resumed()
            return former is not None and former.load_record().input_failed
        return False

    def preview_resumed(self) -> RunDirectory | None:
        """Returns the run that training would resume as things stand; None starts a new one.

        Changes nothing, and decides nothing: `claimed_run` does that under a lock, as other
        processes may start or end runs meanwhile.

        Raises:
          RunDirectoryError: when training would refuse to start here.
        """
        return interrupted_run(self.resume_criteria)

    @property
    def resume_criteria(self) -> ResumeCriteria:
        """The criteria by which a run in `container` is resumed."""
        return ResumeCriteria(self.container, self.record, self.config.resume)

    def make_plan(self, built: BuiltGraph) -> RestorationPlan:
        """Returns the plan of a fresh start, with all problems, from metadata alone.

        Raises:
          ConfigError: when the experiment of a source does not compose or build.
        """
        plan = plan_run(self.config, built, self.sources)
        return replace(plan, notes=(*built.notes, *plan.notes))

    def prove(self, built: BuiltGraph, plan: RestorationPlan) -> RestorationPlan:
        """Returns a plan with the proofs that the configuration asks for, and their problems."""
        model = built.model.model if built.model else None
        return proven(self.config, plan, self.sources, model=model)

    def make_sound_plan(self, built: BuiltGraph) -> RestorationPlan:
        """Returns the plan of a fresh start, proven.

        Raises:
          ConfigError: when the experiment of a source does not compose or build.
          PlanError: when the plan has problems, or a proof fails.
        """
        plan = self.prove(built, self.make_plan(built))
        plan.require_sound()
        return plan

    def restorer(self, built: BuiltGraph, plan: RestorationPlan, **arguments: Any) -> Restorer:
        """Returns the restorer that initialises and restores the variables of a graph."""
        settings = self.config.restoration
        return Restorer(
            plan,
            built.variables,
            self.sources.open,
            initialize=settings.initialize,
            verify=settings.verify,
            **arguments,
        )

    def finished_run(self) -> RunDirectory:
        """Returns the newest finished run of this configuration in `run_dir`.

        Where `run_dir` is itself a run, that is the run, finished or not.

        Raises:
          RunDirectoryError: when there is no such run; it describes the nearest one.
        """
        if self.context.from_run_dir:
            return RunDirectory(self.container)
        for directory, record in runs(self.container):
            if (record.fingerprint, record.status) == (self.record.fingerprint, Status.FINISHED):
                return directory
        raise no_such_run(
            self.container,
            f"{self.container} holds no finished run of this configuration",
            self.record,
            "train it first: the same command with mode=train; or take a run as it is: "
            f"mode={self.config.mode.value} run_dir=RUN without an experiment",
        )


class OpenedRun:
    """A run of an experiment, in a directory that this process owns.

    Attributes:
      experiment: the experiment; its `screen`, `watch` and `coordinator` are used.
      built: its graph.
      config: its configuration, with `train.steps` and the schedules of `train` as the length of an
        epoch decides them.
      training: the training step of `built`.
      directory: the run directory.
      start: whether the run is new, resumed or extended.
      former: its record before that; None for a new run.
      notice: a line about the run that a new one leaves alone, if there is one.
      plan: where variables come from; None for a run that continues from its own checkpoint.
      interruption: reports signals.
      started: when it was opened, by `time.monotonic`.
      tracker: records the run, from `open_tracker` on.
    """

    tracker: Tracker

    def __init__(
        self,
        experiment: Experiment,
        built: BuiltGraph,
        claimed: ClaimedDirectory,
        *,
        plan: RestorationPlan | None,
        interruption: Interruption,
    ) -> None:
        self.experiment, self.plan, self.interruption = experiment, plan, interruption
        self.screen = experiment.screen
        self.watch, self.coordinator = experiment.context.watch, experiment.coordinator
        if built.training is None:
            raise ValueError("the graph was built without a training step")
        self.built, self.training = built, built.training
        config = _with_epochs(experiment.config, self.training.epochs)
        self.config = _with_objective(config, built.evaluation.metrics)
        self.directory, self.start, self.former = claimed.directory, claimed.start, claimed.former
        self.notice = claimed.notice
        self.started = time.monotonic()

    def open_tracker(self) -> Tracker:
        """Opens and returns the run's tracker; call it once nothing can reject the run."""
        experiment, path = self.experiment, self.directory.path
        mask, watch = experiment.mask, self.watch
        tags = {
            FINGERPRINT_TAG: experiment.record.fingerprint,
            RUN_DIR_TAG: str(path.resolve()),
            "runner.overrides": " ".join(mask.overrides(experiment.context.overrides)),
            **process_tags(Path.cwd()),
        }
        name = self.config.name
        watch.started(path)
        self.tracker = tracker = experiment.store.open(
            path, name, f"{name} {path.name}", tags=tags, parent=watch.parent
        )
        # `open` ignores the tags of runs that are recorded already.
        if self.start is not StartKind.new:
            tracker.set_tags({FINGERPRINT_TAG: tags[FINGERPRINT_TAG]})
        # Of a run too that was killed as its extension began, and is resumed.
        if extensions := self.directory.load_record().extensions:
            listed = (f"from step {one['step']}: {'; '.join(one['changes'])}" for one in extensions)
            tracker.set_tags({"runner.extended": "\n".join(listed)})
        if watch.tags:
            keys = {tag: tag.removeprefix(f"{SWEEP_TAG}.") for tag in watch.tags}
            values = {tag: str(mask.value(keys[tag], value)) for tag, value in watch.tags.items()}
            tracker.set_tags(values)
        return tracker


def _with_objective(config: RunConfig, metrics: Sequence[str]) -> RunConfig:
    """Replaces the default objective where no evaluation gives it."""
    train = config.train
    if train.objective == OBJECTIVE and metrics and "loss" not in metrics:
        return replace(config, train=replace(train, objective=f"validation/{metrics[0]}"))
    return config


def _with_epochs(config: RunConfig, epochs: Epochs | None) -> RunConfig:
    train = config.train
    steps = train.steps
    if train.epochs and epochs:
        steps = epochs.steps(train.epochs)
    schedules: dict[str, Any] = {
        "log_every": train.log_every,
        "evaluate_every": train.evaluate_every or ("1 epoch, end" if epochs else EVALUATE_EVERY),
        "checkpoint_every": train.checkpoint_every,
    }
    if epochs is None and train.steps_per_epoch is not None:  # Of a graph of the user's.
        epochs = Epochs(train.steps_per_epoch, first=train.initial_epoch)
    for key, every in schedules.items():
        if every != NEVER and (schedule := as_schedule(every)).counts_epochs:
            schedules[key] = replace(schedule, counted=epochs)
    return replace(config, train=replace(train, steps=steps, **schedules))
