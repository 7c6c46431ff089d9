"""The base of both sweepers: checks all trials, opens the sweep, runs it, reports its results."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.core.utils import env_override
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from runner.config.choices import Mode
from runner.config.masked_output import hide
from runner.config.masking import Mask
from runner.config.schema import RunConfig
from runner.console import Screen
from runner.errors import (
    ConfigError,
    InterruptedRunError,
    Problem,
    RunnerError,
    require_all,
)
from runner.sweeps.device_sets import trial_devices
from runner.sweeps.execution import Execution
from runner.sweeps.launchers import LauncherKind
from runner.sweeps.objectives import Objective, ranked_trials
from runner.sweeps.parent_run import ParentRun
from runner.sweeps.points import (
    ComposedPoint,
    Point,
    check_sources,
    check_targets,
    compose_points,
    params_as_typed,
    parsed,
)
from runner.sweeps.results import Results, masked_trials
from runner.sweeps.sweep_directory import (
    FAILURES,
    Attempt,
    SweepDirectory,
    open_sweep,
    sweep_fingerprint,
    temporary_sweep,
)
from runner.system.locks import acquire_saying
from runner.system.signals import Interruption
from runner.system.status import Status
from runner.tracking import start_delivery

# These change no trial's result.
_NOT_IN_FINGERPRINT = ("sweep", "tracking", "resume", "session")


class RunnerSweeper(Sweeper):
    """A sweeper whose trials are runs of the runner.

    All mistakes in all trials are reported before the first one starts and before anything is
    created. The trials' results are read from files, so that they outlive their processes.

    Attributes:
      several_processes: whether several processes may work at one sweep.
      rerun: what the same command does about trials that failed.
      study: Optuna's, if the sweep has one.
      late_error: what ended the sweep early; raised once the results have been reported.
    """

    several_processes: ClassVar[bool] = False
    rerun = "the same command tries them again, and skips what is finished"

    def __init__(self) -> None:
        self.hydra_context: HydraContext
        self.task_function: TaskFunction
        self.config: DictConfig
        self.screen = Screen()
        self.late_error: RunnerError | None = None
        self.study: Any = None
        self._device_sets: tuple[str, ...] = ()

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Takes what Hydra passes."""
        self.hydra_context, self.task_function = hydra_context, task_function
        self.config = config

    def sweep(self, arguments: list[str]) -> list[Attempt]:
        """Sweeps.

        Raises:
          ConfigError: with every mistake in any trial; nothing has been created then.
          SweepError: trials failed.
          InterruptedRunError: after a signal.
        """
        overrides = parsed(arguments, self.hydra_context.config_loader)
        with Interruption().handled():
            try:
                return self._sweep(overrides)
            except SystemExit as error:
                if isinstance(error.__cause__, InterruptedRunError):
                    raise error.__cause__ from None
                raise

    @abc.abstractmethod
    def points(self, overrides: Sequence[Override]) -> list[Point]:
        """Returns points that are valid only if the whole sweep is."""

    @abc.abstractmethod
    def trials(
        self, composed: Sequence[ComposedPoint], execution: Execution, directory: SweepDirectory
    ) -> list[Attempt]:
        """Runs the trials and returns the last attempt of each."""

    def objectives(self, config: RunConfig) -> list[Objective]:
        """Checks the sweeper's settings, and returns the objectives that rank the trials."""
        return [Objective(config.train.objective, config.train.direction)]

    def identity(self) -> str:
        """Returns the settings that identify the sweep besides its overrides."""
        return ""

    def failures(self, trials: Sequence[Attempt]) -> list[Attempt]:
        """Returns the trials because of which the sweep has failed."""
        return [trial for trial in trials if trial.status in FAILURES]

    def best(self, trials: Sequence[Attempt], objectives: Sequence[Objective]) -> list[Attempt]:
        """Returns the trial with the best objective, if a trial finished."""
        ranked = ranked_trials(trials, objectives)
        return [trial for trial in ranked if trial.status is Status.FINISHED][:1]

    def parsed_params(self, params: Any, overrides: Sequence[Override]) -> list[Override]:
        """Returns `hydra.sweeper.params` as overrides; the command line's win over them."""
        typed = params_as_typed(params, overrides)
        return parsed(typed, self.hydra_context.config_loader)

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """Composes the configuration of one trial."""
        loader = self.hydra_context.config_loader
        return loader.load_sweep_config(self.config, list(overrides))

    def _sweep(self, overrides: Sequence[Override]) -> list[Attempt]:
        points = self.points(overrides)
        composed = compose_points(points, self.compose)
        hide(_mask(composed))
        config = composed[0].config
        objectives = self.objectives(config)
        _check_swept({name for point in points for name in point.values})
        self._launcher_kind.require_installed()
        self._plan_devices(composed)
        if config.mode is Mode.train:
            start_delivery(config.tracking)  # Its imports overlap the imports of targets.
        self.check_trials(composed)
        interruption = Interruption(config.session.grace_seconds)
        with ExitStack() as stack:
            stack.enter_context(interruption.handled())
            if config.mode is Mode.train:
                directory = self._open(overrides, composed)
                stack.callback(directory.lock.release)
                interruption.promise_resume()
                lines = [str(override.input_line) for override in overrides]
                results = self._train(lines, composed, objectives, directory, interruption)
            else:
                shared = not self._launcher_kind.is_local
                directory = stack.enter_context(temporary_sweep(shared=shared))
                if config.mode is Mode.evaluate:
                    objectives = [objective.on("test") for objective in objectives]
                trials = self._run(composed, directory, interruption)
                results = self._results(trials, objectives, composed)
        results.show()
        if self.late_error is not None:
            raise self.late_error
        return list(results.trials)

    def _plan_devices(self, composed: Sequence[ComposedPoint]) -> None:
        """Prints how the trials get devices, and adapts the launcher's settings to it."""
        hydra = self.config.hydra
        with env_override(hydra.job.env_set):
            count = composed[0].config.sweep.devices_per_trial
            devices = trial_devices(count, hydra.launcher, os.environ)
        self._device_sets = devices.sets
        with open_dict(hydra.launcher):
            for key, value in devices.launcher.items():
                OmegaConf.update(hydra.launcher, key, value)
        if devices.line:
            self.screen.line(devices.line)

    def check_trials(self, composed: Sequence[ComposedPoint]) -> None:
        """Checks what the trials name outside their configuration: folders, targets, sources.

        Raises:
          ConfigError: with every mistake.
        """
        hydra = self.config.hydra
        checks: list[Callable[[], object]] = [
            lambda: _check_working_directory(hydra.job.chdir),
            lambda: _check_jobs(hydra.launcher.get("n_jobs")),
            lambda: check_targets(composed),
        ]
        if composed[0].config.mode is Mode.train and self._launcher_kind.is_local:
            checks.append(lambda: check_sources(composed))
        with env_override(hydra.job.env_set):
            require_all(*checks)

    def _open(
        self, overrides: Sequence[Override], composed: Sequence[ComposedPoint]
    ) -> SweepDirectory:
        lines = [
            str(override.input_line)
            for override in overrides
            if override.key_or_group.split(".")[0] not in _NOT_IN_FINGERPRINT
        ]
        return open_sweep(
            Path(self.config.hydra.sweep.dir).absolute(),
            sweep_fingerprint(lines, self.identity()),
            composed[0].config.resume,
            overrides=_mask(composed).overrides(lines),
            join=self.several_processes,
        )

    def _train(
        self,
        overrides: Sequence[str],
        composed: Sequence[ComposedPoint],
        objectives: Sequence[Objective],
        directory: SweepDirectory,
        interruption: Interruption,
    ) -> Results:
        """Runs the trials as children of a parent run, which gets the results."""
        if directory.joined:
            # The process that opened the parent run may end before this one.
            self._run(composed, directory, interruption)
            acquire_saying(directory.lock, "the process that opened the sweep")
        names = {trial.config.name for trial in composed}
        config, mask = composed[0].config, _mask(composed)
        parent = ParentRun(directory, config, names, overrides=overrides, mask=mask)
        status, tags = Status.FAILED, {}
        try:
            trials = self._run(composed, directory, interruption)
            results = self._results(trials, objectives, composed)
            tags = results.record(parent.tracker, directory.path)
            # A sweep that reached its end is finished, whatever its trials' own statuses are.
            finished = any(trial.status is Status.FINISHED for trial in trials)
            if finished and not directory.stopped() and self.late_error is None:
                status = Status.FINISHED
        except (InterruptedRunError, SystemExit):
            status = Status.KILLED
            raise
        finally:
            parent.mark_killed_trials([trial.config for trial in composed])
            parent.close(status, tags, interruption.remaining)
        self.screen.line(f"sweep:   {parent.tracker.location()}")
        self.screen.line(f"files:   {directory.path}")
        return results

    def _run(
        self,
        composed: Sequence[ComposedPoint],
        directory: SweepDirectory,
        interruption: Interruption,
    ) -> list[Attempt]:
        settings = composed[0].config.sweep
        directory.stop_on_failure(settings.on_error.name == "stop")
        kind = self._launcher_kind
        launch = self._launcher(directory).launch

        def launch_singly(overrides: Sequence[Sequence[str]], first: int) -> None:
            # Of a batch, Hydra keeps the configuration of every trial until the last has ended.
            for number, trial in enumerate(overrides, first):
                launch([trial], number)

        execution = Execution(
            directory,
            launch_singly if kind.one_by_one else launch,
            settings.retries,
            interruption=interruption,
            device_sets=self._device_sets,
            crashes_together=kind.crashes_together,
            cancel_queued=kind.cancel_queued,
        )
        try:
            return self.trials(composed, execution, directory)
        finally:
            if self._device_sets:
                kind.end_processes()

    def _results(
        self,
        trials: Sequence[Attempt],
        objectives: Sequence[Objective],
        composed: Sequence[ComposedPoint],
    ) -> Results:
        masked = masked_trials(trials, _mask(composed))
        secret = any(one.values != other.values for one, other in zip(masked, trials, strict=True))
        return Results(
            trials=masked,
            objectives=objectives,
            settings=composed[0].config.sweep,
            best=self.best(masked, objectives),
            # A search's study holds unmasked values.
            study=None if secret else self.study,
            failed=self.failures(masked),
            rerun=self.rerun,
            screen=self.screen,
        )

    @property
    def _launcher_kind(self) -> LauncherKind:
        return LauncherKind(self.config.hydra.launcher)

    def _launcher(self, directory: SweepDirectory) -> Launcher:
        """Builds the launcher, whose jobs read the sweep's directory from their configuration."""
        path = QuotedString(str(directory.path), Quote.single).with_quotes()
        with open_dict(self.config):
            self.config.hydra.sweep.dir = str(directory.path)
            # Each job composes its configuration again.
            self.config.hydra.overrides.hydra.append(f"hydra.sweep.dir={path}")
        return Plugins.instance().instantiate_launcher(
            hydra_context=self.hydra_context, task_function=self.task_function, config=self.config
        )


def _mask(composed: Sequence[ComposedPoint]) -> Mask:
    """Returns a mask of the secrets of all trials."""
    configs = [trial.config for trial in composed]
    return Mask(configs[0].tracking.mask, {}, (asdict(config) for config in configs))


def _check_swept(swept: Collection[str]) -> None:
    problems = [
        Problem(
            f"{name} is swept over",
            "it holds for the sweep, not for a trial",
            f"give it one value, {name}=...",
        )
        for name in sorted(swept)
        if name == "mode" or name.split(".")[0] == "sweep"
    ]
    if problems:
        raise ConfigError(*problems)


def _check_jobs(jobs: Any) -> None:
    """Checks how many trials joblib runs at once; -1 is one for each core."""
    if jobs is not None and (type(jobs) is not int or jobs == 0):
        cause = "it must be a whole number, the trials at once; -1 is one for each core"
        raise ConfigError.of(f"hydra.launcher.n_jobs is {jobs!r}", cause)


def _check_working_directory(chdir: bool | None) -> None:
    if chdir:
        raise ConfigError(
            Problem(
                "hydra.job.chdir is true",
                "run_dir, tracking.uri and paths of data would lead elsewhere in a trial than in"
                " its sweep",
                "leave it out: each run has a directory, which a hook gets by ${run:directory}",
            )
        )
