"""The form of the table in `conflicts`: its conditions, and the problems that a row finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from omegaconf import MISSING

from runner.config.cluster_spec import has_addresses, is_cluster, is_collective
from runner.config.reference_page import in_yaml
from runner.config.schema import ClusterConfig, RunConfig, ScaffoldConfig
from runner.errors import ConfigError, Problem
from runner.internals.mlflow import records_load_of_any_store

_ABSENT = object()


@dataclass(frozen=True)
class Setup:
    """A configuration that conditions are evaluated for.

    Attributes:
      config: the typed configuration, or its plain values with typed `scaffolds` and `devices`.
      cluster: its cluster with counted tasks; None where one process trains.
      sweeps: whether it is the configuration of a trial.
    """

    config: RunConfig | Mapping[str, Any]
    cluster: ClusterConfig | None = None
    sweeps: bool = False

    def value(self, key: str) -> Any:
        """Returns the value of a dotted key; of a structured config, plain values."""
        return _plain(_at(self.config, key))

    def holds(self, condition: str) -> bool:
        """Whether a condition holds: `KEY`, `KEY=VALUE`, `no KEY`, or one of `_FEATURES`.

        A key without a value holds where its value is neither the default nor empty. Conditions may
        be joined by ` or `.
        """
        if condition in _FEATURES:
            return _FEATURES[condition](self)
        if " or " in condition:
            return any(map(self.holds, condition.split(" or ")))
        if condition.startswith("no "):
            return not self.holds(condition.removeprefix("no "))
        key, equals, wanted = condition.partition("=")
        value, default = self.value(key), _default(key)
        if equals:
            return value is not _ABSENT and in_yaml(value) == wanted
        if default is _ABSENT:  # An argument of a `_target_`.
            return value is not _ABSENT and bool(value)
        return value not in (default, None, MISSING, {}, [])

    def held(self, condition: str) -> str:
        """Returns the first of conditions joined by ` or ` that holds."""
        return next(filter(self.holds, condition.split(" or ")))

    def keys(self, pattern: str) -> list[str]:
        """Returns the keys that `scaffolds.NAME.KEY` stands for; another key stands for itself."""
        names = _at(self.config, "scaffolds") if "scaffolds.NAME." in pattern else [""]
        return [pattern.replace(".NAME.", f".{name}.") for name in names]


@dataclass(frozen=True)
class Conflict:
    """Settings that do not go together.

    Attributes:
      when: the conditions under which `keys` cannot be set, joined by ` & `.
      keys: conditions, joined by commas, each of which is refused.
      why: the reason.
      remedy: what to type instead; `{key}` stands for the key.
    """

    when: str
    keys: str
    why: str
    remedy: str

    def problems(self, setup: Setup) -> Iterator[Problem]:
        """Yields a problem for each of the keys that is set."""
        conditions = self.when.split(" & ")
        if all(map(setup.holds, conditions)):
            beside = ", ".join(_in_words(setup.held(condition)) for condition in conditions)
            beside = beside.replace(", beside ", ", ")
            for pattern in self.keys.split(", "):
                for key in filter(setup.holds, setup.keys(pattern)):
                    yield self.problem(f"{_shown(key, setup)} {beside}", key.partition("=")[0])

    def problem(self, state: str = "", key: str = "") -> Problem:
        """Returns the problem of a combination that shows in the model alone.

        Args:
          state: the wrong state; by default, that the row's only key is set.
          key: the key that is set, of several.
        """
        state = state or f"{self.keys} is set {_in_words(self.when)}"
        return Problem(state, self.why, self.remedy.replace("{key}", key))

    def error(self, state: str = "") -> ConfigError:
        """Returns the error of `problem`."""
        return ConfigError(self.problem(state))

    def row(self) -> str:
        """Returns the row of the page."""
        cells = (
            " and ".join(map(_cell, self.when.split(" & "))),
            ", ".join(map(_cell, self.keys.split(", "))),
            self.why,
            self.remedy.replace("{key}", "it"),
        )
        return f"| {' | '.join(cells)} |"


def conflict_problems(conflicts: Iterable[Conflict], setup: Setup) -> list[Problem]:
    """Returns the problem of every combination in a configuration that is refused."""
    return [problem for conflict in conflicts for problem in conflict.problems(setup)]


# A condition that is more than a key and its value -> whether it holds.
_FEATURES: Mapping[str, Callable[[Setup], bool]] = {
    "devices": lambda setup: _count(setup.value("devices.count")) != 1,
    "no tracking.uri": lambda setup: (setup.value("tracking.uri") or "none").lower() == "none",
    "MLflow before 3.7": lambda setup: not records_load_of_any_store(),
    "a cluster": lambda setup: setup.cluster is not None,
    "parameter servers": lambda setup: (
        setup.cluster is not None and not is_collective(setup.cluster)
    ),
    "collective updates": lambda setup: setup.cluster is not None and is_collective(setup.cluster),
    "one worker": lambda setup: setup.cluster is not None and setup.cluster.workers < 2,
    "several workers": lambda setup: setup.cluster is not None and setup.cluster.workers > 1,
    "evaluated averages": lambda setup: _at(setup.config, "train").evaluates_averages,
    "TF_CONFIG": lambda setup: (
        has_addresses(_at(setup.config, "cluster")) and not setup.value("cluster.local")
    ),
    "no cluster": lambda setup: not is_cluster(_at(setup.config, "cluster")),
    "a sweep": lambda setup: setup.sweeps,
}


def _at(config: Any, key: str) -> Any:
    for part in _parts(key):
        if isinstance(config, Mapping):
            config = config.get(part, _ABSENT)
        else:
            config = getattr(config, part, _ABSENT)
    return config


def _parts(key: str) -> list[str]:
    if key.startswith("scaffolds."):  # A scaffold's name may have dots.
        name, _, last = key.removeprefix("scaffolds.").rpartition(".")
        return ["scaffolds", name, last]
    return key.split(".")


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _default(key: str) -> Any:
    if key.startswith("scaffolds."):
        return _plain(getattr(ScaffoldConfig(), _parts(key)[-1]))
    return _plain(_at(RunConfig(), key))


def _count(devices: Any) -> Any:
    return len(devices) if isinstance(devices, list) else devices


def _shown(key: str, setup: Setup) -> str:
    name, equals, value = key.partition("=")
    if name == "TF_CONFIG":
        return f"{name} is set"
    if not equals:
        setting = setup.value("devices.count" if name == "devices" else name)
        if isinstance(setting, Mapping) or (isinstance(setting, list) and name != "devices"):
            return f"{name} is set"
        value = in_yaml(setting)
    return f"{name} is {value}"


_WORDS = {
    "a cluster": "in a cluster",
    "a sweep": "in a sweep",
    "no cluster": "without a cluster",
}


def _in_words(condition: str) -> str:
    if condition.startswith("no "):
        return _WORDS.get(condition, f"without {condition.removeprefix('no ')}")
    return _WORDS.get(condition, f"beside {condition}")


def _cell(condition: str) -> str:
    """Returns a condition as the page has it, a key in backquotes."""
    if " or " in condition:
        return " or ".join(map(_cell, condition.split(" or ")))
    negated = condition.startswith("no ")
    name = condition.removeprefix("no ")
    is_key = re.split("[.=]", name)[0] in {field.name for field in fields(RunConfig)}
    quoted = f"`{name}`" if is_key and condition != "no cluster" else name
    return f"no {quoted}" if negated else quoted
