"""The part that the sweepers share: check all, open the sweep, run its trials, tell the end."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, cast

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.core.utils import env_override
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from runner.config.choices import Mode
from runner.config.masking import Mask
from runner.config.schema import RunConfig
from runner.console import Screen
from runner.errors import ConfigError, InterruptedRunError, Problem, RunnerError, require_all
from runner.sweeps.attempt import FAILURES, Attempt, TrialStatus
from runner.sweeps.checks import check_sources, check_targets, starts_here
from runner.sweeps.conclusion import Conclusion, shown_trials
from runner.sweeps.execution import Execution, Launch
from runner.sweeps.extras import require_launcher
from runner.sweeps.learning_curves import check_bands
from runner.sweeps.parent_run import close_parent, name_trials, open_parent, settle_trials
from runner.sweeps.points import ComposedOnce, ComposedPoint, Point, compose_points, params_as_typed
from runner.sweeps.slurm import LAUNCHER as SLURM
from runner.sweeps.slurm import withdraw
from runner.sweeps.summary import Objective, ranked_trials
from runner.sweeps.sweep_directory import (
    SweepDirectory,
    SweepIdentity,
    open_sweep,
    unrecorded_sweep,
)
from runner.sweeps.unopened_runs import record_unopened
from runner.system.signals import Interruption
from runner.system.status import Status
from runner.tracking import Tracker, start_delivery

T = TypeVar("T")

# What changes no trial's result does not make another sweep.
_ELSEWHERE = ("sweep", "tracking", "resume", "session")
_SERIAL = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
# Prefixes of launchers with which the death of a trial's process ends no other one.
_APART = ("hydra_plugins.hydra_submitit_launcher.", "hydra_plugins.runner_launchers.")


class RunnerSweeper(Sweeper):
    """A sweeper whose trials are runs of the runner.

    Everything that can be wrong with any trial is told before the first one starts and before
    anything is made. The trials' results are read from files, so that they outlive their processes.
    """

    joins = False
    """Whether several processes may work at one sweep."""

    again = "the same command tries them again, and skips what is finished"
    """What the same command does about trials that failed."""

    def __init__(self) -> None:
        self.hydra_context: HydraContext | None = None
        self.task_function: TaskFunction | None = None
        self.config: DictConfig | None = None
        self.screen = Screen()
        self._composed: ComposedOnce | None = None
        # What ended the sweep before its end; it is raised when all that is done has been told.
        self.cut_short: RunnerError | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Stores what Hydra gives."""
        self.hydra_context, self.task_function = hydra_context, task_function
        self.config = config
        self._composed = ComposedOnce(hydra_context.config_loader)

    def sweep(self, arguments: list[str]) -> list[Attempt]:
        """Sweeps.

        Raises:
          ConfigError: with every mistake in any trial; nothing has been made then.
          SweepError: trials failed.
          InterruptedRunError: after a signal.
        """
        parser = OverridesParser.create(config_loader=self._context.config_loader)
        overrides = parser.parse_overrides(arguments)
        with Interruption().handled():
            try:
                return self._sweep(overrides)
            except SystemExit as error:
                if isinstance(error.__cause__, InterruptedRunError):
                    raise error.__cause__ from None
                raise

    @abc.abstractmethod
    def points(self, overrides: Sequence[Override]) -> list[Point]:
        """Returns points whose validity is that of the whole sweep."""

    def swept(self, points: Sequence[Point]) -> Collection[str] | None:
        """Returns the names of the keys that are swept; None where they show only later."""
        return {name for each in points for name in each.values}

    @abc.abstractmethod
    def trials(
        self, composed: Sequence[ComposedPoint], execution: Execution, directory: SweepDirectory
    ) -> list[Attempt]:
        """Runs the trials and returns the last attempt of each."""

    def objectives(self, config: RunConfig) -> list[Objective]:
        """Returns what decides which trial is better."""
        return [Objective(config.train.objective, config.train.goal)]

    def identity(self) -> str:
        """Returns what identifies the sweep besides its overrides."""
        return ""

    def unmended(self, trials: Sequence[Attempt]) -> list[Attempt]:
        """Returns the failures that are left to the same command."""
        return [each for each in trials if each.status in FAILURES]

    def best(self, trials: Sequence[Attempt], objectives: Sequence[Objective]) -> list[Attempt]:
        """Returns the trial with the best objective; none where no trial finished."""
        ranked = ranked_trials(trials, objectives)
        return [each for each in ranked if each.status is TrialStatus.FINISHED][:1]

    def study(self, trials: Sequence[Attempt], objectives: Sequence[Objective]) -> Any:
        """Returns the trials as a study of Optuna's."""
        from runner.sweeps.figures import study_of

        return study_of(trials, objectives)

    @property
    def _context(self) -> HydraContext:
        return _given(self.hydra_context)

    @property
    def _master(self) -> DictConfig:
        return _given(self.config)

    def parsed_params(self, params: Any, overrides: Sequence[Override]) -> list[Override]:
        """Returns `hydra.sweeper.params` as overrides; the command line's win over them."""
        parser = OverridesParser.create(config_loader=self._context.config_loader)
        return parser.parse_overrides(params_as_typed(params, overrides))

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """Composes the configuration of one trial."""
        return _given(self._composed).compose(self._master, overrides)

    def _sweep(self, overrides: Sequence[Override]) -> list[Attempt]:
        points = self.points(overrides)
        composed = compose_points(points, self.compose)
        config = composed[0].config
        objectives = self.objectives(config)
        modes = {each.config.mode for each in composed}
        if len(modes) > 1:
            raise ConfigError(
                Problem("mode is swept over", "the trials of a sweep do the same thing")
            )
        swept = self.swept(points)
        _check_settings(swept)
        check_bands(config.sweep.bands, swept)
        require_launcher(self._launcher_target)
        if config.mode is Mode.train:
            start_delivery(config.tracking)  # Its imports overlap those of targets.
        self.check_trials(composed)
        with Interruption(config.session.grace_seconds).handled() as interruption:
            return self._conduct(overrides, composed, objectives, interruption)

    def check_trials(self, composed: Sequence[ComposedPoint]) -> None:
        """Checks what the trials name beside their configuration: folder, targets and sources.

        Raises:
          ConfigError: with every mistake.
        """
        checks: list[Callable[[], object]] = [
            self._check_working_directory,
            lambda: check_targets(composed),
        ]
        trains = composed[0].config.mode is Mode.train
        if trains and starts_here(self._master.hydra.launcher):
            checks.append(lambda: check_sources(composed))
        with env_override(self._master.hydra.job.env_set):
            require_all(*checks)

    def _check_working_directory(self) -> None:
        if self._master.hydra.job.chdir:
            raise ConfigError(
                Problem(
                    "hydra.job.chdir is true",
                    "run_dir, tracking.uri and paths of data would lead elsewhere in a trial than"
                    " in its sweep",
                    "leave it out: each run has a folder of its own, and a hook is given it by"
                    " ${run:directory}",
                )
            )

    def _conduct(
        self,
        overrides: Sequence[Override],
        composed: Sequence[ComposedPoint],
        objectives: Sequence[Objective],
        interruption: Interruption,
    ) -> list[Attempt]:
        config = composed[0].config
        names = {each.config.name for each in composed}
        name = config.name if len(names) == 1 else None
        trains = config.mode is Mode.train
        mask = Mask(config.tracking.mask, {}, (asdict(each.config) for each in composed))
        with self._directory(overrides, config, mask, trains=trains) as directory:
            launcher = self._launcher(directory)
            directory.stop_on_failure(config.sweep.on_error.name == "stop")
            execution = Execution(
                directory,
                launching(launcher),
                config.sweep.retries,
                interruption,
                collective=not self._launcher_target.startswith(_APART),
                withdraw=self.take_out_of_queue,
            )
            if not trains:
                trials = self.run_trials(composed, execution, directory)
                if config.mode is Mode.evaluate:
                    objectives = [each.on("test") for each in objectives]
                conclusion = self._conclusion(trials, objectives, config, mask)
            else:
                lines = [str(each.input_line) for each in overrides]
                if directory.joined:
                    # Another process has opened the parent run, and may end before this one.
                    self.run_trials(composed, execution, directory)
                    directory.lock.acquire()
                tracker = open_parent(directory.path, config, name, lines, mask)
                conclusion = self._tracked(
                    tracker, composed, execution, directory, objectives, interruption, mask
                )
        conclusion.tell()
        if self.cut_short is not None:
            raise self.cut_short
        return list(conclusion.trials)

    def _tracked(
        self,
        tracker: Tracker,
        composed: Sequence[ComposedPoint],
        execution: Execution,
        directory: SweepDirectory,
        objectives: Sequence[Objective],
        interruption: Interruption,
        mask: Mask,
    ) -> Conclusion:
        status, tags = Status.FAILED, {}
        try:
            trials = self.run_trials(composed, execution, directory)
            record_unopened(directory, composed)
            conclusion = self._conclusion(trials, objectives, composed[0].config, mask)
            tags = conclusion.record(tracker, directory.path)
            # A sweep that went to its end is finished, whatever its trials' own statuses are.
            finished = any(each.status is TrialStatus.FINISHED for each in trials)
            if finished and not directory.stopped() and self.cut_short is None:
                status = Status.FINISHED
        except (InterruptedRunError, SystemExit):
            status = Status.KILLED
            raise
        finally:
            close_parent(tracker, status, tags, interruption.remaining())
            name_trials(directory.path, composed[0].config)
        self.screen.line(f"sweep:   {tracker.location()}")
        self.screen.line(f"files:   {directory.path}")
        return conclusion

    def run_trials(
        self, composed: Sequence[ComposedPoint], execution: Execution, directory: SweepDirectory
    ) -> list[Attempt]:
        """Runs the trials; whatever ends that, those whose process was killed are told of."""
        configs = [each.config for each in composed]
        try:
            return self.trials(composed, execution, directory)
        finally:
            if configs[0].mode is Mode.train:
                settle_trials(configs, [file.read() for file in directory.attempts()])

    def _conclusion(
        self,
        trials: Sequence[Attempt],
        objectives: Sequence[Objective],
        config: RunConfig,
        mask: Mask,
    ) -> Conclusion:
        shown = shown_trials(trials, mask)
        secret = any(one.values != other.values for one, other in zip(shown, trials, strict=True))
        return Conclusion(
            shown,
            objectives,
            config.sweep,
            lambda: self.best(shown, objectives),
            # A study that is kept has values as they are.
            lambda: (RunnerSweeper.study if secret else type(self).study)(self, shown, objectives),
            self.unmended(shown),
            self.again,
            self.screen,
        )

    @contextmanager
    def _directory(
        self, overrides: Sequence[Override], config: RunConfig, mask: Mask, *, trains: bool
    ) -> Iterator[SweepDirectory]:
        if not trains:
            with unrecorded_sweep(shared=self._launcher_target != _SERIAL) as directory:
                yield directory
            return
        deciding = [
            str(each.input_line)
            for each in overrides
            if each.key_or_group.split(".")[0] not in _ELSEWHERE
        ]
        directory = open_sweep(
            Path(self._master.hydra.sweep.dir).absolute(),
            SweepIdentity(tuple(deciding), self.identity()),
            config.resume.value,
            join=self.joins,
            masked=mask.overrides,
        )
        try:
            yield directory
        finally:
            directory.lock.release()

    @property
    def _launcher_target(self) -> str:
        return str(self._master.hydra.launcher.get("_target_", ""))

    def take_out_of_queue(self, numbers: Collection[int]) -> None:
        """Takes attempts out of the launcher's queue."""
        if self._launcher_target == SLURM:
            withdraw(self._master.hydra.launcher.submitit_folder, numbers)

    def _launcher(self, directory: SweepDirectory) -> Any:
        """Returns the launcher, whose jobs find the sweep's directory in Hydra's configuration."""
        place = QuotedString(str(directory.path), Quote.single).with_quotes()
        with open_dict(self._master):
            self._master.hydra.sweep.dir = str(directory.path)
            # Each job composes its configuration anew.
            self._master.hydra.overrides.hydra.append(f"hydra.sweep.dir={place}")
        context = self._context
        if self._launcher_target == _SERIAL:
            context = HydraContext(cast(ConfigLoader, self._composed), context.callbacks)
        return Plugins.instance().instantiate_launcher(
            hydra_context=context,
            task_function=_given(self.task_function),
            config=self._master,
        )


def _check_settings(swept: Collection[str] | None) -> None:
    """Raises ConfigError where keys of `sweep` are swept, of which there is one for all trials."""
    problems = [
        Problem(
            f"{name} is swept over",
            "it holds for the sweep, not for a trial",
            f"give it one value, {name}=...",
        )
        for name in sorted(swept or ())
        if name.split(".")[0] == "sweep"
    ]
    if problems:
        raise ConfigError(*problems)


def _given(value: T | None) -> T:
    if value is None:
        raise RuntimeError("setup has not been called")
    return value


def launching(launcher: Launcher) -> Launch:
    """Returns what launches jobs; with Hydra's serial launcher, each by itself.

    It would keep what every job returns, with two copies of its configuration, to the end.
    """
    if type(launcher) is not BasicLauncher:
        return launcher.launch

    def launch(overrides: Sequence[Sequence[str]], first: int) -> None:
        for number, each in enumerate(overrides, first):
            launcher.launch([each], number)

    return launch
