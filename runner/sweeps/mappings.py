"""A mapping among the sweeper's settings, as somebody has given it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.errors import ConfigError, Problem


def given_mapping(name: str, value: Any, example: str) -> dict[str, Any]:
    """Returns `hydra.sweeper.NAME`; an empty mapping where it is not set.

    Args:
      name: of the setting.
      value: it, null included.
      example: a valid one.

    Raises:
      ConfigError: it is no mapping.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(
            Problem(
                f"hydra.sweeper.{name} is {value!r}",
                "it must be a mapping",
                f"for example 'hydra.sweeper.{name}={example}'",
            )
        )
    # In Hydra's grammar a key may be a number.
    return {str(key): each for key, each in value.items()}
