"""The fingerprint of a run, computed from the part of its configuration that decides its result."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import Any

from runner.config.choices import EXPERIMENT, Mode, Resume
from runner.config.composition import compose_experiment, experiment_names
from runner.config.schema import DevicesConfig, RunConfig, ScaffoldConfig
from runner.config.training_schema import EVALUATE_EVERY, TrainConfig, implied_goal
from runner.config.validation import validate
from runner.errors import ConfigError, Problem, RunnerError

# Keys that a user may change without asking for another result.
NOT_IN_FINGERPRINT = (
    "mode",
    "resume",
    "run_dir",
    "plan",
    "proof",
    "evaluate",
    "predict",
    "export",
    "session",
    "tracking",
    "checkpoint",
    "sweep",
    "cluster",
    "devices",
)
# Left out if empty, because runs that are older than these keys must resume.
_IF_SET = (
    "loss_weights",
    "weighted_metrics",
    "class_weight",
    "model_fn",
    "params",
    "input_fns",
    "graph",
    "callbacks",
)
_OF_A_SCAFFOLD_IF_SET = ("rules", "update_statistics")
# Read by the modes evaluate and export only.
_UNUSED_INPUTS = ("test", "serving")
# Keys of a scaffold that check values and change none.
_CHECKS = ("sha256", "proof")
_UNUSED_TRAIN_KEYS = ("log_every", "checkpoint_every", "keep_checkpoints")


def settings(config: RunConfig, source_fingerprint: Callable[[str], str]) -> dict[str, Any]:
    """Returns the configuration as plain values, without settings that do not decide the result.

    Args:
      config: the validated configuration.
      source_fingerprint: scaffold name -> fingerprint of the experiment that its checkpoint names;
        asked only for checkpoints that begin with `experiment:`.
    """
    plain = {key: value for key, value in asdict(config).items() if key not in NOT_IN_FINGERPRINT}
    for key in _UNUSED_INPUTS:
        plain["input_fns"].pop(key, None)
    for key in _IF_SET:
        if not plain[key]:
            del plain[key]
    for key in _UNUSED_TRAIN_KEYS:
        del plain["train"][key]
    train = plain["train"]
    if train["steps_per_epoch"] is not None:
        del train["epochs"]  # `steps` counts the same, and may become more by resume=extend.
    else:
        for key in ("epochs", "steps_per_epoch"):
            if train[key] is None:
                del train[key]
        if "epochs" not in train and train["evaluate_every"] is None:
            train["evaluate_every"] = EVALUATE_EVERY  # Older runs have the default itself.
    plain["train"]["goal"] = config.train.direction
    for hook in plain["hooks"].values():
        if str(hook["_target_"]).endswith(".EarlyStoppingHook"):
            _name_as_before(hook, config.train)
    if devices := _settings_of_devices(config.devices):
        plain["devices"] = devices
    for name, scaffold in plain["scaffolds"].items():
        for key in _CHECKS:
            del scaffold[key]
        for key in _OF_A_SCAFFOLD_IF_SET:
            if not scaffold[key]:
                del scaffold[key]
        checkpoint = scaffold["checkpoint"]
        if checkpoint and checkpoint.startswith(EXPERIMENT):
            scaffold["checkpoint"] = f"{checkpoint}@{source_fingerprint(name)}"
    plain_values: dict[str, Any] = json.loads(json.dumps(plain, default=_spelling))
    for part in (plain_values["data"], plain_values["model"]):
        if "_target_" in part:
            # Runs of a checkout have the examples that a wheel ships by this name.
            part["_target_"] = re.sub(r"^runner\.examples\.", "experiments.", str(part["_target_"]))
    return plain_values


def _settings_of_devices(devices: DevicesConfig) -> dict[str, Any]:
    """Returns the settings of devices that affect the result: neither their names nor number."""
    plain, default = asdict(devices), asdict(DevicesConfig())
    return {key: plain[key] for key in ("batch", "sync_batch_norm") if plain[key] != default[key]}


def _name_as_before(hook: dict[str, Any], train: TrainConfig) -> None:
    """Gives an early stopping the keys and values that it had in older runs."""
    asked = hook.pop("objective", None) or hook.pop("metric", None) or train.objective
    goal = hook.pop("goal", None) or hook.pop("mode", None)
    implied = train.direction if asked == train.objective else implied_goal(asked)
    hook.pop("metric", None)
    hook.pop("mode", None)
    hook["metric"], hook["mode"] = asked.removeprefix("validation/"), goal or implied


def fingerprint(plain: dict[str, Any]) -> str:
    """Returns 16 hexadecimal digits that differ when any of the settings differs.

    The order of keys does not count, except among scaffolds, which are applied in order.
    """
    text = json.dumps([list(plain["scaffolds"]), plain], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _spelling(value: Any) -> str:
    return str(value.value if isinstance(value, Enum) else value)


class Identity:
    """A run's settings and fingerprint, which include the fingerprints of its sources' experiments.

    Args:
      config: the run's configuration.
      asked_by: the experiments that this run is a source of, outermost dependent first.

    Raises:
      ConfigError: from every method, when the configuration of a source is not valid, or an
        experiment is its own source.
    """

    def __init__(self, config: RunConfig, asked_by: tuple[RunConfig, ...] = ()) -> None:
        self._config, self._asked_by = config, asked_by
        self._experiments: dict[str, RunConfig] = {}

    def settings(self) -> dict[str, object]:
        """Returns the settings that identify the run and its sources' experiments."""
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
                problems = (in_scaffold(scaffold, problem) for problem in error.problems)
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
            raise ConfigError.of(
                f"the experiment {experiment.name} is its own source",
                " <- ".join(config.name for config in (*chain, experiment)),
                "name another experiment or a checkpoint in one of them",
            )
        return Identity(experiment, chain).fingerprint()


def in_scaffold(name: str, problem: Problem) -> Problem:
    """Returns a problem of a scaffold's checkpoint with the scaffold named."""
    return prefixed(f"scaffolds.{name}.checkpoint", problem)


def prefixed(where: str, problem: Problem) -> Problem:
    """Returns a problem with its place before its state."""
    return replace(problem, state=f"{where}: {problem.state}")
