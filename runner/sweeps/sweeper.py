"""The part that the sweepers share: check all, open the sweep, run its trials, tell the end."""

from __future__ import annotations

import abc
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from runner.config import Mode, RunConfig, SweepConfig
from runner.errors import ConfigError, InterruptedRunError, Problem, SweepError
from runner.interruption import Interruption
from runner.run_directory import settle_killed_runs
from runner.screen import Screen
from runner.sweeps.attempt import FAILURES, Attempt, TrialStatus
from runner.sweeps.execution import Execution, Launch
from runner.sweeps.learning_curves import bands, threshold_rows
from runner.sweeps.objective import Objective
from runner.sweeps.parent_run import close_parent, open_parent, start_follower
from runner.sweeps.points import ComposedPoint, Point, compose_points, params_as_typed
from runner.sweeps.summary import (
    columns,
    failures,
    ranked_trials,
    rich_table,
    rows,
    text,
)
from runner.sweeps.sweep_directory import SweepDirectory, SweepIdentity, open_sweep
from runner.sweeps.target_check import check_targets
from runner.tracking import RunStatus, Tracker

T = TypeVar("T")

# Prefix of a launcher's class -> the extra that brings it.
_EXTRAS = {
    "hydra_plugins.hydra_joblib_launcher.": "joblib",
    "hydra_plugins.hydra_submitit_launcher.": "slurm",
}
# What changes no trial's result does not make another sweep.
_ELSEWHERE = ("sweep", "tracking", "resume", "session")


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

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Stores what Hydra gives."""
        self.hydra_context, self.task_function = hydra_context, task_function
        self.config = config

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

    def _conclude(
        self,
        tracker: Tracker,
        directory: SweepDirectory,
        trials: Sequence[Attempt],
        objectives: Sequence[Objective],
        settings: SweepConfig,
    ) -> dict[str, str]:
        """Records what is to be seen of the whole sweep and returns tags of the parent run."""
        tags = {
            "runner.sweep.trials": str(len(trials)),
            "runner.sweep.failed": str(len([each for each in trials if each.status in FAILURES])),
        }
        best = self.best(trials, objectives)
        if best:
            tags["runner.sweep.best"] = json.dumps([dict(each.values) for each in best])
            tags["runner.sweep.best_run"] = json.dumps([each.run_dir for each in best])
        tracker.log_text(text(trials, objectives), "summary.txt")
        results = json.dumps([asdict(replace(each, study=None)) for each in trials], indent=2)
        tracker.log_text(results, "trials.json")
        steps = _steps_to_threshold(trials, objectives, settings)
        if steps:
            tracker.log_text(steps.text(), "steps_to_threshold.txt")
        if settings.figures and best:
            tags |= self._draw(tracker, directory, trials, objectives, settings)
        return tags

    def _draw(
        self,
        tracker: Tracker,
        directory: SweepDirectory,
        trials: Sequence[Attempt],
        objectives: Sequence[Objective],
        settings: SweepConfig,
    ) -> dict[str, str]:
        # Importing Matplotlib takes time that a sweep without figures need not wait for.
        from runner.sweeps.curve_figure import draw_bands

        folder = directory.path / "figures"
        files = draw_bands(
            bands(trials, objectives[0], settings.bands),
            objectives[0],
            folder / "learning_curves.png",
            settings.bands,
            settings.threshold,
        )
        tags = {}
        try:
            from runner.sweeps.figures import draw, importances
        except ImportError as error:
            self.screen.line(f'no further figures: {error}; pip install "runner[optuna]"')
        else:
            study = self.study(trials, objectives)
            files += draw(study, objectives, folder, {file.stem for file in files})
            tags["runner.sweep.importances"] = json.dumps(importances(study, objectives))
        for file in files:
            tracker.log_artifact(file, "figures")
        return tags

    @property
    def _context(self) -> HydraContext:
        return _given(self.hydra_context)

    @property
    def _master(self) -> DictConfig:
        return _given(self.config)

    def parsed_params(
        self, params: Mapping[str, Any], overrides: Sequence[Override]
    ) -> list[Override]:
        """Returns `hydra.sweeper.params` as overrides; the command line's win over them."""
        parser = OverridesParser.create(config_loader=self._context.config_loader)
        return parser.parse_overrides(params_as_typed(params, overrides))

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """Composes the configuration of one trial."""
        return self._context.config_loader.load_sweep_config(self._master, list(overrides))

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
        require_launcher(str(self._master.hydra.launcher.get("_target_", "")))
        follower = start_follower(config)
        check_targets(composed)
        names = {each.config.name for each in composed}
        name = config.name if len(names) == 1 else None
        trains = config.mode is Mode.train
        with self._directory(overrides, config, trains=trains) as directory:
            launcher = self._launcher(directory)
            directory.stop_on_failure(config.sweep.on_error.name == "stop")
            execution = Execution(directory, launching(launcher), config.sweep.retries)
            if not trains:
                trials = self.trials(composed, execution, directory)
            else:
                lines = [str(each.input_line) for each in overrides]
                if not directory.lock.is_locked:
                    # Another process has opened the parent run, and may end before this one.
                    self.trials(composed, execution, directory)
                    directory.lock.acquire()
                tracker = open_parent(directory.path, config, name, lines, follower)
                trials = self._tracked(tracker, composed, execution, directory, objectives)
                for killed in {each.config.run_dir for each in composed}:
                    settle_killed_runs(Path(killed))
        self._tell(trials, objectives, config.sweep)
        return trials

    def _tracked(
        self,
        tracker: Tracker,
        composed: Sequence[ComposedPoint],
        execution: Execution,
        directory: SweepDirectory,
        objectives: Sequence[Objective],
    ) -> list[Attempt]:
        status, tags = RunStatus.FAILED, {}
        try:
            trials = self.trials(composed, execution, directory)
            settings = composed[0].config.sweep
            tags = self._conclude(tracker, directory, trials, objectives, settings)
            # A sweep that went to its end is finished, whatever its trials' own statuses are.
            finished = any(each.status is TrialStatus.FINISHED for each in trials)
            if finished and not directory.stopped():
                status = RunStatus.FINISHED
        except (InterruptedRunError, SystemExit):
            status = RunStatus.KILLED
            raise
        finally:
            close_parent(tracker, status, tags)
        self.screen.line(f"sweep:   {tracker.location()}")
        self.screen.line(f"files:   {directory.path}")
        return trials

    @contextmanager
    def _directory(
        self, overrides: Sequence[Override], config: RunConfig, *, trains: bool
    ) -> Iterator[SweepDirectory]:
        if not trains:
            with tempfile.TemporaryDirectory(prefix="sweep-") as folder:
                yield SweepDirectory(Path(folder))
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
        )
        try:
            yield directory
        finally:
            directory.lock.release()

    def _launcher(self, directory: SweepDirectory) -> Any:
        """Returns the launcher, whose jobs find the sweep's directory in Hydra's configuration."""
        place = QuotedString(str(directory.path), Quote.single).with_quotes()
        with open_dict(self._master):
            self._master.hydra.sweep.dir = str(directory.path)
            # Each job composes its configuration anew.
            self._master.hydra.overrides.hydra.append(f"hydra.sweep.dir={place}")
        return Plugins.instance().instantiate_launcher(
            hydra_context=self._context,
            task_function=_given(self.task_function),
            config=self._master,
        )

    def _tell(
        self, trials: Sequence[Attempt], objectives: Sequence[Objective], settings: SweepConfig
    ) -> None:
        self.screen.line("")
        table = rich_table(rows(trials, objectives), "trials, the best first")
        self.screen.show(table, text(trials, objectives))
        if self.screen.is_terminal:
            for line in failures(trials):
                self.screen.line(line)
        steps = _steps_to_threshold(trials, objectives, settings)
        if steps:
            self.screen.show(rich_table(steps.rows, steps.title), f"\n{steps.text()}")
        failed = self.unmended(trials)
        skipped = [each for each in trials if each.status is TrialStatus.SKIPPED]
        if failed:
            codes = {each.exit_code for each in failed}
            rest = f", {len(skipped)} not started" if skipped else ""
            raise SweepError(
                Problem(
                    f"{len(failed)} of {len(trials)} trials failed{rest}",
                    remedy=self.again,
                ),
                codes.pop() if len(codes) == 1 else 1,
            )


def _given(value: T | None) -> T:
    if value is None:
        raise RuntimeError("setup has not been called")
    return value


@dataclass(frozen=True)
class _Steps:
    """A table of the steps that each band took to the threshold."""

    title: str
    rows: list[list[str]]

    def text(self) -> str:
        return "\n".join([self.title, *columns(self.rows)]) + "\n"


def _steps_to_threshold(
    trials: Sequence[Attempt], objectives: Sequence[Objective], settings: SweepConfig
) -> _Steps | None:
    """Returns the table; None where none is wanted or no trial has finished."""
    found = bands(trials, objectives[0], settings.bands)
    if settings.threshold is None or not found:
        return None
    title = f"steps to {objectives[0].name} {settings.threshold:g}"
    return _Steps(title, threshold_rows(found, objectives[0], settings.threshold))


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


def require_launcher(target: str) -> None:
    """Checks that the launcher's plugin is installed.

    Raises:
      ConfigError: it is not.
    """
    known = Plugins.instance().class_name_to_class
    if target in known:
        return
    extra = next((each for prefix, each in _EXTRAS.items() if target.startswith(prefix)), None)
    raise ConfigError(
        Problem(
            f"hydra.launcher._target_ is {target!r}",
            "no installed plugin of Hydra holds it",
            f'pip install "runner[{extra}]"' if extra else "install its package",
            tuple(name for name, each in known.items() if issubclass(each, Launcher)),
        )
    )
