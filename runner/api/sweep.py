"""`runner.sweep`: a grid or a search over the keys of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from runner.api.door import door
from runner.api.fit import experiment_of
from runner.api.result import Result, open_run
from runner.api.run import Overrides, as_typed, python_context
from runner.api.start import start_job
from runner.config.composition import (
    command_scope,
    reporting_composition,
    search_path,
    typed_overrides,
    with_plus_plus,
)
from runner.config.spelling import number_or_text
from runner.errors import ConfigError
from runner.sweeps.objectives import Objective, ranked_trials
from runner.sweeps.points import params_as_typed
from runner.sweeps.sweep_directory import Attempt
from runner.system.signals import Interruption
from runner.system.status import Status

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class SweepResult:
    """The trials of a sweep; shows itself as a table in a notebook.

    Attributes:
      trials: the last attempt of each trial, in their order.
      objects: what `${python:NAME}` stands for in their configurations.
    """

    trials: Sequence[Attempt]
    objects: Mapping[str, Any] = field(default_factory=dict)

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each trial: swept values, objective, metrics, status and run directory."""
        import pandas as pd

        rows = [
            {
                **{key: number_or_text(value) for key, value in trial.values.items()},
                **{f"validation/{name}": value for name, value in trial.metrics.items()},
                "objective": trial.objective,
                "status": trial.status.value,
                "directory": trial.run_dir,
            }
            for trial in self.trials
        ]
        return pd.DataFrame(
            rows, index=pd.Index([trial.trial for trial in self.trials], name="trial")
        )

    @cached_property
    def best(self) -> Attempt | None:
        """The finished trial with the best objective; its `values` are the swept ones."""
        finished = [trial for trial in self.trials if trial.status is Status.FINISHED]
        if not finished or finished[0].run_dir is None:
            return None
        train = open_run(finished[0].run_dir).config.train
        return ranked_trials(finished, [Objective(train.objective, train.direction)])[0]

    @property
    def best_run(self) -> Result | None:
        """The run of the best trial."""
        if self.best is None or self.best.run_dir is None:
            return None
        return replace(open_run(self.best.run_dir), objects=self.objects)

    def __repr__(self) -> str:
        table: str = self.frame.to_string()  # A frame's own leaves columns out.
        return table

    def _repr_html_(self) -> str:
        html: str = self.frame.to_html()
        return html


def _require_function(model: Any) -> None:
    if hasattr(model, "trainable_variables"):
        raise ConfigError.of(
            f"a sweep is given a {type(model).__name__}",
            "every trial would begin with the weights that the one before has left",
            "give a function that returns the compiled model",
        )


@door
def sweep(
    experiment: str | Callable[..., Any],
    params: Mapping[str, Any],
    overrides: Overrides = (),
    *,
    trials: int | None = None,
    config_dir: Any = None,
    **fit_arguments: Any,
) -> SweepResult:
    """Sweeps over keys of an experiment: every combination of values, or a search.

    It has the rules of `python -m runner -m`: trials are runs, recorded as children of one run in
    MLflow; the same call resumes the sweep, and skips trials that have finished.

    Args:
      experiment: the name of an experiment, or a function as for `runner.fit`.
      params: key -> list of values, or a string in the grammar of the command line, such as
        `"interval(1e-4, 1e-1)"` in a search.
      overrides: of all trials, as for `runner.run`.
      trials: how many trials a search by Optuna makes; None for every combination.
      config_dir: a folder with experiments, as after `--config-dir`.
      **fit_arguments: with a function, the other arguments of `runner.fit`. Without validation
        data, training data whose number is known are evaluated at the end.

    Returns:
      The trials.

    Raises:
      RunnerError: as the command line; `SweepError` when trials failed.
    """
    search = [] if trials is None else ["hydra/sweeper=optuna", f"hydra.sweeper.n_trials={trials}"]
    objects: Mapping[str, Any] = {}
    with ExitStack() as stack:
        if isinstance(experiment, str):
            stack.enter_context(command_scope())
            name = experiment
        else:
            _require_function(experiment)
            experiment_scope = experiment_of(experiment, needs_objective=True, **fit_arguments)
            name, _, objects = stack.enter_context(experiment_scope)

        def job(config: DictConfig) -> float | None:
            return start_job(config, python_context(typed_overrides()))

        command = [
            *search_path(config_dir),
            "hydra.mode=MULTIRUN",
            *search,
            f"+experiment={name}",
            *map(with_plus_plus, as_typed(overrides)),
            *params_as_typed(dict(params), []),
        ]
        stack.enter_context(Interruption(keeps_process=True).handled())
        stack.enter_context(reporting_composition(command))
        hydra = GlobalHydra.instance().hydra
        if hydra is None:
            raise RuntimeError("Hydra is not initialized")
        attempts = hydra.multirun("config", job, command, with_log_configuration=False)
        return SweepResult(attempts, objects)
