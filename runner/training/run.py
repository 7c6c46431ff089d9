"""One run: what its phases share, each made once, and what connects it to its surroundings.

A run may train together with the tasks of a cluster, and a sweep may watch it. By default there is
neither: `runner.cluster` extends `Coordinator` and `runner.sweeps` extends `TrialWatch`; nothing in
a run imports those rooms.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import tensorflow as tf

from runner.config.fingerprint import fingerprint
from runner.config.masking import Mask
from runner.config.schema import RunConfig
from runner.console import Screen
from runner.errors import InterruptedRunError, Problem, RunDirectoryError
from runner.graph.build import build_graph
from runner.graph.built_graph import BuiltGraph, Training
from runner.graph.replica import Replica
from runner.restoration.plan import RestorationPlan
from runner.restoration.restorer import Restorer
from runner.runs.resumption import discard, interrupted_run, nearest, open_run
from runner.runs.run_directory import RunDirectory, RunRecord, runs
from runner.session.monitored_session import ChiefSessionCreator
from runner.system.signals import Interruption
from runner.system.status import Status
from runner.tracking import Tracker, open_store
from runner.training.sources import Sources, plan_run
from runner.training.watch import TrialWatch


class Run:
    """A run of an experiment, from its configuration to its end.

    Attributes:
      config: the validated configuration.
      overrides, run_dir_is_explicit, from_run_dir: see `RunContext`.
      print_next_commands, screen, watch, coordinator: see `RunContext`.
      started: when it was made, or its sources were trained, by `time.monotonic`.
      store: where runs are recorded.
      sources: the checkpoints that the configuration names.
      container: the configured `run_dir`.
      plan: where variables come from; None for a run that resumes from its own checkpoint.
      directory: the run's directory, from `open` on.
      interruption: reports signals, from `open` on.
      tracker: records the run, while it is recorded.
    """

    directory: RunDirectory
    interruption: Interruption
    tracker: Tracker

    def __init__(self, config: RunConfig, context: RunContext) -> None:
        self.config = config
        self.overrides = context.overrides
        self.run_dir_is_explicit = context.run_dir_is_explicit
        self.from_run_dir = context.from_run_dir
        self.print_next_commands = context.print_next_commands
        self.started = time.monotonic()
        self.screen, self.watch = context.screen, context.watch
        self.coordinator = context.coordinator
        self.store = open_store(config.tracking, asdict(config), self.mask)
        self.sources = Sources(config, self.store)
        self.container = Path(config.run_dir)
        self.plan: RestorationPlan | None = None

    @cached_property
    def mask(self) -> Mask:
        """Hides secrets in what is recorded."""
        return Mask(self.config.tracking.mask, asdict(self.config))

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The configuration as plain values, secrets masked."""
        plain: dict[str, Any] = self.mask.settings(asdict(self.config))
        return plain

    @cached_property
    def settings(self) -> dict[str, object]:
        """What identifies the run, with its sources' experiments identified likewise."""
        return self.sources.settings()

    @cached_property
    def fingerprint(self) -> str:
        """Identifies runs whose configuration has the same result."""
        return fingerprint(self.settings)

    @cached_property
    def record(self) -> RunRecord:
        """The record with which a new run starts."""
        return RunRecord(
            self.config.name,
            self.fingerprint,
            Status.RUNNING,
            self.mask.settings(self.settings),
            trial=self.watch.name(self.container),
        )

    @cached_property
    def built(self) -> BuiltGraph:
        """The graph that trains, and evaluates the validation split; not finalised.

        Raises:
          ConfigError: when a `_target_` cannot be built or does not keep its contract.
        """
        replica = self.coordinator.replica
        return build_graph(self.config, "validation", train=True, replica=replica)

    @property
    def training(self) -> Training:
        """The training step of `built`."""
        if self.built.training is None:
            raise ValueError("the graph was built without a training step")
        return self.built.training

    def run_to_resume(self) -> RunDirectory | None:
        """Returns the run that training would resume, changing nothing; None starts afresh.

        Raises:
          RunDirectoryError: when training would refuse to start here.
        """
        resume, more = self.config.resume.value, self._resume_criteria
        return interrupted_run(self.container, self.record, resume, **more)

    @property
    def _resume_criteria(self) -> dict[str, Any]:
        """What else decides which run is resumed."""
        return {"run_dir_is_explicit": self.run_dir_is_explicit, "settings": self.settings}

    def open(self, interruption: Interruption) -> None:
        """Claims the directory of the run to resume, or of a new one.

        Args:
          interruption: reports signals.

        Raises:
          RunDirectoryError: as `run_to_resume`; also when a living process owns the directory.
        """
        self.interruption = interruption
        resume, more = self.config.resume.value, self._resume_criteria
        self.directory = open_run(self.container, self.record, resume, **more)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Where the block fails, records how the run ended, and releases its directory.

        A new run, of which nothing else is recorded yet, leaves no directory.
        """
        try:
            yield
        except BaseException as error:
            killed = isinstance(error, InterruptedRunError)
            with self.interruption.deferred():
                if not self.directory.config.exists():
                    discard(self.directory, self.container)
                    raise
                try:
                    self.directory.update(status=Status.KILLED if killed else Status.FAILED)
                finally:
                    self.directory.release()
            raise

    def make_plan(self) -> RestorationPlan:
        """Returns the plan of a fresh start, with all problems.

        Raises:
          ConfigError: when the experiment of a source does not compose or build.
        """
        return plan_run(self.config, self.built, self.sources)

    def restorer(self, plan: RestorationPlan) -> Restorer:
        """Returns what initialises and restores the variables of `built` as planned."""
        settings = self.config.restoration
        return Restorer(
            plan,
            self.built.variables,
            self.sources.open,
            initialize=settings.initialize,
            verify=settings.verify,
        )

    def finished(self) -> RunDirectory:
        """Returns the newest finished run of this configuration in `run_dir`.

        For a run that is named by its folder, that is the run, finished or not.

        Raises:
          RunDirectoryError: when there is none; it lists what differs from the nearest run.
        """
        if self.from_run_dir:
            return RunDirectory(self.container)
        found = runs(self.container)
        for directory, record in found:
            if record.fingerprint == self.fingerprint and record.status == Status.FINISHED:
                return directory
        cause, remedy = "it holds no run at all", "train it first: the same command with mode=train"
        if found:
            directory, record, changes = nearest(found, self.record)
            cause = f"{directory.path} is {record.status}"
            cause += f" and differs: {'; '.join(changes)}" if changes else ""
            remedy += f"; mode={self.config.mode.value} run_dir={directory.path} without an "
            remedy += "experiment takes that run as it is"
        raise RunDirectoryError(
            Problem(f"{self.container} holds no finished run of this configuration", cause, remedy)
        )


_Hooks: TypeAlias = Sequence[tf.compat.v1.train.SessionRunHook]


class Coordinator:
    """What the run's process does for other tasks that train the model; this one knows of none.

    Attributes:
      replica: this process's copy of the graph.
    """

    replica: Replica = Replica()

    def report_begun(self) -> None:
        """Reports that the run is begun or resumed."""

    def is_over(self, run: Run) -> bool:
        """Whether an earlier process has trained the run to its end, and only that is to record."""
        return False

    def session_creator(self, run: Run, **arguments: Any) -> ChiefSessionCreator:
        """Returns the creator of the run's sessions; the arguments are those of its class."""
        settings = run.config.session
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=settings.intra_op_threads,
            inter_op_parallelism_threads=settings.inter_op_threads,
            allow_soft_placement=True,
        )
        return ChiefSessionCreator(config=config, **arguments)

    def hooks(self, run: Run) -> tuple[_Hooks, _Hooks]:
        """Returns the hooks that come before and after all others."""
        return (), ()

    def session_scope(self, run: Run) -> AbstractContextManager[object]:
        """Surrounds the run's session."""
        return nullcontext()


@dataclass(frozen=True)
class RunContext:
    """What a command gives to a run besides its configuration.

    Attributes:
      overrides: the command line's overrides, recorded with the run.
      run_dir_is_explicit: whether the user named `run_dir` for this run; training then refuses an
        interrupted run in it with another warm start, instead of starting a run beside it.
      from_run_dir: whether `run_dir` is itself the run to evaluate or export, and `config` its
        recorded configuration.
      print_next_commands: whether the run's last lines suggest commands that evaluate, export or
        resume it; False for sources and trials.
      screen: where to print; by default standard output.
      watch: the trial of a sweep that the run is.
      coordinator: leads the other tasks of a cluster.
    """

    overrides: Sequence[str] = ()
    run_dir_is_explicit: bool = False
    from_run_dir: bool = False
    print_next_commands: bool = False
    screen: Screen = field(default_factory=Screen)
    watch: TrialWatch = field(default_factory=TrialWatch)
    coordinator: Coordinator = field(default_factory=Coordinator)
