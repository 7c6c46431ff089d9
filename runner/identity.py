"""What identifies a run: its settings, and those of the experiments that its sources come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runner.composition import compose_experiment, experiment_names
from runner.config import Mode, Resume, RunConfig, ScaffoldConfig
from runner.errors import ConfigError, Problem, RunnerError
from runner.fingerprint import EXPERIMENT, fingerprint, settings
from runner.validation import validate


class Identity:
    """A run's settings and fingerprint, which take in those of its sources' experiments.

    Args:
      config: the run's configuration.
      asked_by: the experiments whose source this run is, the first asked first.

    Raises:
      ConfigError: from every method, when the configuration of a source is not valid or an
        experiment is a source of its own.
    """

    def __init__(self, config: RunConfig, asked_by: tuple[RunConfig, ...] = ()) -> None:
        self._config, self._asked_by = config, asked_by
        self._experiments: dict[str, RunConfig] = {}

    def settings(self) -> dict[str, object]:
        """Returns what identifies the run, with its sources' experiments identified likewise."""
        return settings(self._config, lambda name: self.of(self.experiment(name)))

    def fingerprint(self) -> str:
        """Returns the fingerprint of the settings."""
        return fingerprint(self.settings())

    def experiment(self, scaffold: str) -> RunConfig:
        """Returns the configuration of the experiment that a scaffold comes from."""
        if scaffold not in self._experiments:
            entry: ScaffoldConfig = self._config.scaffolds[scaffold]
            name = str(entry.checkpoint).removeprefix(EXPERIMENT)
            try:
                composed = compose_experiment(name, entry.overrides)
                experiment = validate(composed, experiment_names())
            except RunnerError as error:
                problems = (in_scaffold(scaffold, each) for each in error.problems)
                raise ConfigError(*problems) from error
            experiment.tracking = self._config.tracking
            experiment.run_dir = str(Path(self._config.run_dir).parent / experiment.name)
            experiment.mode, experiment.resume = Mode.train, Resume.auto
            self._experiments[scaffold] = experiment
        return self._experiments[scaffold]

    def of(self, experiment: RunConfig) -> str:
        """Returns the fingerprint of an experiment that is a source of this run."""
        chain = (*self._asked_by, self._config)
        if experiment in chain:
            raise ConfigError(
                Problem(
                    f"the experiment {experiment.name} is a source of its own",
                    " <- ".join(each.name for each in (*chain, experiment)),
                    "name another experiment or a checkpoint in one of them",
                )
            )
        return Identity(experiment, chain).fingerprint()


def in_scaffold(name: str, problem: Problem) -> Problem:
    """Returns a problem of a scaffold's checkpoint with the scaffold named."""
    return prefixed(f"scaffolds.{name}.checkpoint", problem)


def prefixed(where: str, problem: Problem) -> Problem:
    """Returns a problem that says where it is."""
    return replace(problem, state=f"{where}: {problem.state}")
