"""The fingerprint of a run, computed from the part of its configuration that decides its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import Any

from runner.config.choices import EXPERIMENT, Mode, Resume
from runner.config.composition import compose_experiment, experiment_names
from runner.config.schema import RunConfig, ScaffoldConfig
from runner.config.validation import validate
from runner.errors import ConfigError

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
    train = plain["train"]
    for key in _UNUSED_TRAIN_KEYS:
        del train[key]
    if train["steps_per_epoch"] is not None:
        del train["epochs"]  # `steps` counts the same, and may become more by resume=extend.
    train["goal"] = config.train.direction
    # Neither the names of the devices nor their number.
    devices = config.devices
    plain["devices"] = {"batch": devices.batch, "sync_batch_norm": devices.sync_batch_norm}
    for name, scaffold in plain["scaffolds"].items():
        for key in _CHECKS:
            del scaffold[key]
        checkpoint = scaffold["checkpoint"]
        if checkpoint and checkpoint.startswith(EXPERIMENT):
            scaffold["checkpoint"] = f"{checkpoint}@{source_fingerprint(name)}"
    plain_values: dict[str, Any] = json.loads(json.dumps(plain, default=_spelling))
    return plain_values


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
            with ConfigError.within(f"scaffolds.{scaffold}.checkpoint"):
                composed = compose_experiment(name, entry.overrides)
                experiment = validate(composed, experiment_names())
            self._experiments[scaffold] = replace(
                experiment,
                tracking=self._config.tracking,
                run_dir=str(Path(self._config.run_dir).parent / experiment.name),
                mode=Mode.train,
                resume=Resume.auto,
            )
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
