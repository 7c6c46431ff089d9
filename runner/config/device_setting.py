"""The key `devices` and its short forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from omegaconf import OmegaConf

from runner.config.key_problems import merged, rule_problems
from runner.config.keys import keys
from runner.config.schema import DevicesConfig
from runner.errors import Problem


def read_devices(value: Any) -> tuple[DevicesConfig, list[Problem]]:
    """Returns the devices of a configuration, from a mapping or its short form, and its problems.

    Args:
      value: plain values, such as 2, `all`, `[0, 1]`, `{"count": 2}` or None for the default; or a
        `DevicesConfig`.
    """
    if value is None:
        return DevicesConfig(), []
    if isinstance(value, DevicesConfig):
        value = asdict(value)
    problems: list[Problem] = []
    if not isinstance(value, Mapping):
        value = {"count": value}
        problems += [
            replace(problem, state=problem.state.replace("devices.count", "devices"))
            for problem in rule_problems(value, DevicesConfig, "devices.")
        ]
    elif value and value.keys() <= {*keys(DevicesConfig)} - {"count"}:
        problems.append(
            Problem(
                f"devices.{next(iter(value))} is set without devices.count",
                "an override of it replaces the short form of a file, such as `devices: 2`",
                "add devices.count=2, or the number of devices you want",
            )
        )
    valid = {key: item for key, item in value.items() if key in keys(DevicesConfig)}
    typed, unfit = merged(DevicesConfig, valid, "devices")
    devices: Any = OmegaConf.to_object(typed)
    return devices, problems + unfit
