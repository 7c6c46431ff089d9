"""The door from Python, in scripts and notebooks: runs by the rules of the command line."""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Group
from rich.text import Text

from runner.cluster.local import LocalCluster, task_command
from runner.config.cluster import resolve as resolve_cluster
from runner.config.cluster_spec import is_task, launches
from runner.config.composition import (
    command_scope,
    compose_command,
    experiment_names,
    shipped,
    without_hydra,
)
from runner.config.schema import EVALUATOR, PS, WORKER, RunConfig
from runner.config.spelling import spelled
from runner.config.validation import is_from_run_dir, validate
from runner.console import Listing, as_html, screen_of_process
from runner.errors import ConfigError, Problem, RunnerError, UserCodeError
from runner.runs.recorded_config import recorded_config
from runner.runs.run_directory import RunDirectory, runs
from runner.system.imports import import_tensorflow
from runner.system.signals import Interruption
from runner.system.user_code import FULL, staying
from runner.tracking import open_store
from runner.tracking.journal import history
from runner.tracking.tracking_directory import TrackingDirectory

if TYPE_CHECKING:
    import pandas as pd

    from runner.restoration.eager_plan import WarmStartPlan

Overrides: TypeAlias = Sequence[str] | Mapping[str, Any]
"""As on the command line, `["train.steps=100"]`, or key -> value, `{"train.steps": 100}`."""
Configuration: TypeAlias = DictConfig | RunConfig | Mapping[str, Any]


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _door(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Wraps a function to raise the errors of its user as their message, without inner frames."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except RunnerError as error:
            if os.environ.get(FULL) == "1":
                raise
            if isinstance(error, UserCodeError) and error.details:
                # Python 3.10 has no notes.
                getattr(error, "add_note", print)(error.details)
            raise error.with_traceback(None) from None

    return call


@dataclass(frozen=True)
class Result:
    """A run, as it is on the disk; shows itself in a notebook.

    Attributes:
      config: its configuration.
      directory: its directory; None of a plan, and where no run is concerned.
      plan: where the variables came from; None where a run continued from its own checkpoint.
      evaluated: the metrics of `mode=evaluate`.
    """

    config: RunConfig
    directory: Path | None = None
    plan: WarmStartPlan | None = None
    evaluated: Mapping[str, float] = field(default_factory=dict)

    @property
    def metrics(self) -> pd.DataFrame:
        """All that the run has recorded: a row for each step, a column for each metric."""
        import pandas as pd

        steps = history(TrackingDirectory(self._run.path).journal)
        frame = pd.DataFrame.from_dict(steps, orient="index")
        return frame.rename_axis("step")

    @property
    def best(self) -> dict[str, float]:
        """The `step` and the metrics of the best evaluation; empty before one."""
        if not self._run.best_record.is_file():
            return {}
        content = json.loads(self._run.best_record.read_text())
        return {"step": content["step"], **content["metrics"]}

    @property
    def mlflow_run_id(self) -> str | None:
        """MLflow's id of the run; None before it is delivered there."""
        return open_store(self.config.tracking, {}).run_id(self._run.path)

    @_door
    def model(self, which: str = "") -> Any:
        """Returns the trained Keras model, outside any graph: for `predict`, `save`, a `fit`.

        Args:
          which: `best`, `latest` or a step; by default the best checkpoint, or else the newest.

        Raises:
          RunnerError: when there is no such checkpoint, or the run has no Keras model.
        """
        from runner.checkpoints.locate import resolve
        from runner.training.eager_model import eager_model

        which = which or ("best" if self.best else "latest")
        with unchanged_process():
            (prefix,) = resolve(str(self._run.path), which)
            return eager_model(self.config, prefix)

    @property
    def _run(self) -> RunDirectory:
        if self.directory is None:
            state = f"mode={self.config.mode.value} has made no run"
            raise RunnerError(Problem(state, "only a run has this", "train it: mode=train"))
        return RunDirectory(self.directory)

    def _repr_html_(self) -> str:
        if self.directory is None:
            return "" if self.plan is None else self.plan._repr_html_()
        record = self._run.load_record()
        lines = [f"{record.name}: {record.status}, {self.directory}"]
        if best := self.best:
            lines.append(f"best: {_shown(best)}")
        if self.evaluated:
            lines.append(f"{self.config.evaluate.split.value}: {_shown(self.evaluated)}")
        steps = history(TrackingDirectory(self.directory).journal)
        names = list(dict.fromkeys(name for values in steps.values() for name in values))
        rows = [
            (str(step), *(f"{values[name]:.4g}" if name in values else "" for name in names))
            for step, values in list(steps.items())[-_ROWS:]
        ]
        return as_html(Group(*map(Text, lines), Listing(("step", *names), rows)))


# The last rows of the history, in a notebook.
_ROWS = 10


def _shown(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


@_door
def open_run(directory: str | Path) -> Result:
    """Opens a run by its directory, as one that `runner.run` returns; reads, and changes nothing.

    Raises:
      RunDirectoryError: when the folder is no run.
    """
    with command_scope():
        command = compose_command(["mode=evaluate", f"run_dir={spelled(str(directory))}"])
        config = validate(recorded_config(without_hydra(command), []))
    return Result(config, Path(directory))


@_door
def run(
    experiment: str | Configuration | None = None,
    overrides: Overrides = (),
    *,
    config_dir: str | Path | None = None,
) -> Result:
    """Runs an experiment by the rules of the command line, in this process.

    It trains, resumes, plans, evaluates or exports, as `mode` says. What it changes in the process
    is put back afterwards: seeds, names and policy of Keras, Hydra, signal handlers, the current
    folder. SIGINT, such as the stop button of a notebook, saves and ends the run; the same call
    resumes it.

    Args:
      experiment: a name, as after `+experiment=`; or a configuration, composed or a mapping; None
        where `run_dir=...` names a run to evaluate or export.
      overrides: as on the command line, or key -> value; only with a name.
      config_dir: a folder with experiments, as after `--config-dir`.

    Returns:
      The run.

    Raises:
      RunnerError: as the command line reports it, with the same message; `InterruptedRunError`
        after a signal.
    """
    with command_scope():
        typed = _as_typed(overrides)
        named = [f"+experiment={experiment}"] if isinstance(experiment, str) else []
        folder = [f"hydra.searchpath=[{spelled(_address(config_dir))}]"] if config_dir else []
        command = compose_command([*folder, *named, *typed])
        if experiment is None or named:
            return _run(without_hydra(command), [*named, *typed])
        if typed:
            remedy = "change the configuration itself"
            raise ConfigError(Problem("overrides go with the name of an experiment", remedy=remedy))
        return _run(experiment, [])


def _run(config: Any, overrides: Sequence[str]) -> Result:
    """Runs a configuration, within `command_scope`."""
    from_run_dir = isinstance(config, DictConfig) and is_from_run_dir(config)
    if from_run_dir:
        config = recorded_config(config, overrides)
    valid = resolve_cluster(validate(config, experiment_names()), os.environ)
    if is_task(valid.cluster, PS, WORKER, EVALUATOR):
        remedy = "start each with the command line: python -m runner"
        raise ConfigError(Problem("this process is a task of a cluster", remedy=remedy))
    if launches(valid):
        command = task_command(HydraConfig.get(), shipped("conf"))
        seconds = valid.session.grace_seconds
        LocalCluster(valid.cluster, command, save_seconds=seconds).run()
        return Result(valid, next((run.path for run, _ in runs(Path(valid.run_dir))), None))
    import_tensorflow()
    from runner.cluster.chief import coordinator_of
    from runner.config.choices import SCAFFOLDS, Mode
    from runner.lifecycle import perform
    from runner.restoration.eager_plan import WarmStartPlan
    from runner.training.run import Experiment, RunContext

    context = RunContext(
        overrides=overrides,
        from_run_dir=from_run_dir,
        screen=screen_of_process(),
        coordinator=coordinator_of(valid),
    )
    seconds = valid.session.grace_seconds
    with unchanged_process(), Interruption(seconds, keeps_process=True).handled():
        experiment = Experiment(valid, context)
        outcome = perform(experiment)
    directory, plan = outcome.directory, outcome.plan
    if valid.mode not in (Mode.train, Mode.plan):
        settings = getattr(valid, valid.mode.value)
        directory = None if settings.which == SCAFFOLDS else experiment.finished_run().path
    if plan is not None:
        origins = experiment.sources.origins()
        plan = WarmStartPlan(**vars(plan), origins=origins, model=valid.name)
    return Result(valid, directory, plan, outcome.metrics)


def _as_typed(overrides: Overrides) -> list[str]:
    if isinstance(overrides, Mapping):
        return [f"{key}={spelled(value)}" for key, value in overrides.items()]
    return list(overrides)


def _address(folder: str | Path) -> str:
    return f"file://{Path(folder).absolute()}"


@contextmanager
def unchanged_process() -> Iterator[None]:
    """Puts back what a run changes in the process; a run begins with the same state in any case."""
    from runner.internals.keras import restored_names
    from runner.internals.tensorflow import restored_seed

    states = random.getstate(), np.random.get_state()
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.ERROR)  # Its own Saver uses deprecated parts, which it warns about.
    try:
        with staying(), restored_names(), restored_seed():
            yield
    finally:
        logger.setLevel(level)
        random.setstate(states[0])
        np.random.set_state(states[1])
