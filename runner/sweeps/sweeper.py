"""What both sweepers do: check all trials, open the sweep, run it, report its results."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
from runner.config.schema import RunConfig, SweepConfig
from runner.console import Screen
from runner.errors import (
    ConfigError,
    InterruptedRunError,
    Problem,
    RunnerError,
    nearest,
    require_all,
)
from runner.sweeps.execution import Execution, LauncherKind
from runner.sweeps.objectives import Objective, ranked_trials
from runner.sweeps.parent_run import ParentRun
from runner.sweeps.points import (
    ComposedPoint,
    Point,
    check_sources,
    check_targets,
    compose_points,
    params_as_typed,
)
from runner.sweeps.results import Results, masked_trials
from runner.sweeps.sweep_directory import (
    FAILURES,
    Attempt,
    SweepDirectory,
    SweepIdentity,
    open_sweep,
    unrecorded_sweep,
)
from runner.system.signals import Interruption
from runner.system.status import Status
from runner.tracking import start_delivery

# What changes no trial's result does not make another sweep.
_ELSEWHERE = ("sweep", "tracking", "resume", "session")


class RunnerSweeper(Sweeper):
    """A sweeper whose trials are runs of the runner.

    Everything that can be wrong with any trial is reported before the first one starts and before
    anything is made. The trials' results are read from files, so that they outlive their processes.
    """

    joins = False
    """Whether several processes may work at one sweep."""

    again = "the same command tries them again, and skips what is finished"
    """What the same command does about trials that failed."""

    def __init__(self) -> None:
        self.hydra_context: HydraContext
        self.task_function: TaskFunction
        self.config: DictConfig
        self.screen = Screen()
        # What ended the sweep early; raised once the results have been reported.
        self.cut_short: RunnerError | None = None
        # Optuna's, if the sweep has one.
        self.study: Any = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Takes what Hydra passes."""
        self.hydra_context, self.task_function = hydra_context, task_function
        self.config = config

    def sweep(self, arguments: list[str]) -> list[Attempt]:
        """Sweeps.

        Raises:
          ConfigError: with every mistake in any trial; nothing has been made then.
          SweepError: trials failed.
          InterruptedRunError: after a signal.
        """
        overrides = self._parsed(arguments)
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

    def swept(self, points: Sequence[Point]) -> Collection[str] | None:
        """Returns the swept keys; None where they are not known beforehand."""
        return {name for point in points for name in point.values}

    def objectives(self, config: RunConfig) -> list[Objective]:
        """Returns what decides which trial is better."""
        return [Objective(config.train.objective, config.train.goal)]

    def identity(self) -> str:
        """Returns what identifies the sweep besides its overrides."""
        return ""

    def failures(self, trials: Sequence[Attempt]) -> list[Attempt]:
        """Returns the trials because of which the sweep has failed."""
        return [trial for trial in trials if trial.status in FAILURES]

    def best(self, trials: Sequence[Attempt], objectives: Sequence[Objective]) -> list[Attempt]:
        """Returns the trial with the best objective; none where no trial finished."""
        ranked = ranked_trials(trials, objectives)
        return [each for each in ranked if each.status is Status.FINISHED][:1]

    def parsed_params(self, params: Any, overrides: Sequence[Override]) -> list[Override]:
        """Returns `hydra.sweeper.params` as overrides; the command line's win over them."""
        return self._parsed(params_as_typed(params, overrides))

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """Composes the configuration of one trial."""
        loader = self.hydra_context.config_loader
        return loader.load_sweep_config(self.config, list(overrides))

    def _parsed(self, overrides: list[str]) -> list[Override]:
        loader = self.hydra_context.config_loader
        return OverridesParser.create(config_loader=loader).parse_overrides(overrides)

    def _sweep(self, overrides: Sequence[Override]) -> list[Attempt]:
        points = self.points(overrides)
        composed = compose_points(points, self.compose)
        config = composed[0].config
        objectives = self.objectives(config)
        check_swept(self.swept(points), config.sweep.bands)
        self._launcher.require_installed()
        if config.mode is Mode.train:
            start_delivery(config.tracking)  # Its imports overlap those of targets.
        self.check_trials(composed)
        grace = Interruption(config.session.grace_seconds)
        with grace.handled() as interruption, self._directory(overrides, composed) as directory:
            results = self._run(overrides, composed, objectives, directory, interruption)
        results.show()
        if self.cut_short is not None:
            raise self.cut_short
        return list(results.trials)

    def check_trials(self, composed: Sequence[ComposedPoint]) -> None:
        """Checks what the trials name outside their configuration: folders, targets, sources.

        Raises:
          ConfigError: with every mistake.
        """
        hydra = self.config.hydra
        checks: list[Callable[[], object]] = [
            lambda: _check_working_directory(hydra.job.chdir),
            lambda: check_targets(composed),
        ]
        if composed[0].config.mode is Mode.train and self._launcher.is_local:
            checks.append(lambda: check_sources(composed))
        with env_override(hydra.job.env_set):
            require_all(*checks)

    def _run(
        self,
        overrides: Sequence[Override],
        composed: Sequence[ComposedPoint],
        objectives: Sequence[Objective],
        directory: SweepDirectory,
        interruption: Interruption,
    ) -> Results:
        config = composed[0].config
        mask = _mask(composed)
        execution = self._execution(directory, config, interruption)
        directory.stop_on_failure(config.sweep.on_error.name == "stop")
        if config.mode is not Mode.train:
            if config.mode is Mode.evaluate:
                objectives = [objective.on("test") for objective in objectives]
            trials = self.trials(composed, execution, directory)
            return self._results(trials, objectives, config, mask)
        if directory.joined:
            # The process that opened the parent run may end before this one.
            self.trials(composed, execution, directory)
            directory.lock.acquire()
        parent = ParentRun(directory, config, mask)
        names = {each.config.name for each in composed}
        parent.open(names, [str(override.input_line) for override in overrides])
        status, tags = Status.FAILED, {}
        try:
            trials = self.trials(composed, execution, directory)
            parent.record_unopened(composed)
            results = self._results(trials, objectives, config, mask)
            tags = results.record(parent.tracker, directory.path)
            # A sweep that reached its end is finished, whatever its trials' own statuses are.
            finished = any(trial.status is Status.FINISHED for trial in trials)
            if finished and not directory.stopped() and self.cut_short is None:
                status = Status.FINISHED
        except (InterruptedRunError, SystemExit):
            status = Status.KILLED
            raise
        finally:
            parent.settle_trials([each.config for each in composed])
            parent.close(status, tags, interruption.remaining())
        self.screen.line(f"sweep:   {parent.tracker.location()}")
        self.screen.line(f"files:   {directory.path}")
        return results

    def _execution(
        self, directory: SweepDirectory, config: RunConfig, interruption: Interruption
    ) -> Execution:
        return Execution(
            directory,
            self._launching(directory).launch,
            config.sweep.retries,
            interruption,
            collective=self._launcher.is_collective,
            withdraw=self._launcher.withdraw,
        )

    def _results(
        self,
        trials: Sequence[Attempt],
        objectives: Sequence[Objective],
        config: RunConfig,
        mask: Mask,
    ) -> Results:
        shown = masked_trials(trials, mask)
        secret = any(one.values != other.values for one, other in zip(shown, trials, strict=True))
        return Results(
            shown,
            objectives,
            config.sweep,
            self.best(shown, objectives),
            # A search's study holds values as they are.
            None if secret else self.study,
            self.failures(shown),
            self.again,
            self.screen,
        )

    @contextmanager
    def _directory(
        self, overrides: Sequence[Override], composed: Sequence[ComposedPoint]
    ) -> Iterator[SweepDirectory]:
        config = composed[0].config
        if config.mode is not Mode.train:
            with unrecorded_sweep(shared=not self._launcher.is_local) as directory:
                yield directory
            return
        deciding = [
            str(override.input_line)
            for override in overrides
            if override.key_or_group.split(".")[0] not in _ELSEWHERE
        ]
        directory = open_sweep(
            Path(self.config.hydra.sweep.dir).absolute(),
            SweepIdentity(tuple(deciding), self.identity()),
            config.resume.value,
            join=self.joins,
            masked=_mask(composed).overrides,
        )
        try:
            yield directory
        finally:
            directory.lock.release()

    @property
    def _launcher(self) -> LauncherKind:
        return LauncherKind(self.config.hydra.launcher)

    def _launching(self, directory: SweepDirectory) -> Launcher:
        """Returns the launcher, whose jobs find the sweep's directory in Hydra's configuration."""
        place = QuotedString(str(directory.path), Quote.single).with_quotes()
        with open_dict(self.config):
            self.config.hydra.sweep.dir = str(directory.path)
            # Each job composes its configuration anew.
            self.config.hydra.overrides.hydra.append(f"hydra.sweep.dir={place}")
        return Plugins.instance().instantiate_launcher(
            hydra_context=self.hydra_context, task_function=self.task_function, config=self.config
        )


def _mask(composed: Sequence[ComposedPoint]) -> Mask:
    """Returns what knows the secrets of all trials."""
    configs = [each.config for each in composed]
    return Mask(configs[0].tracking.mask, {}, (asdict(config) for config in configs))


def check_swept(swept: Collection[str] | None, bands: Sequence[str]) -> None:
    """Checks the keys that are swept, unless they are not known yet.

    Raises:
      ConfigError: one of them is `mode` or of `sweep`; or one of `sweep.bands`, whose default
        suits every sweep, is not swept.
    """
    if swept is None:
        return
    problems = [
        Problem(
            f"{name} is swept over",
            "it holds for the sweep, not for a trial",
            f"give it one value, {name}=...",
        )
        for name in sorted(swept)
        if name == "mode" or name.split(".")[0] == "sweep"
    ]
    problems += [
        Problem(
            f"sweep.bands names {each!r}",
            "that is no key of this sweep",
            "name keys that are swept, which repeat a trial",
            nearest(each, swept),
        )
        for each in bands
        if each not in {*SweepConfig().bands, *swept}
    ]
    if problems:
        raise ConfigError(*problems)


def _check_working_directory(chdir: bool | None) -> None:
    if chdir:
        raise ConfigError(
            Problem(
                "hydra.job.chdir is true",
                "run_dir, tracking.uri and paths of data would lead elsewhere in a trial than in"
                " its sweep",
                "leave it out: each run has a folder of its own, and a hook is given it by"
                " ${run:directory}",
            )
        )
