"""Instantiates `_target_` entries of the configuration and explains what does not fit."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate

from runner.errors import ConfigError, Problem, nearest

_HYDRA_KEYS = ("_target_", "_partial_", "_args_", "_recursive_", "_convert_")


def build_target(key: str, node: Mapping[str, Any]) -> Any:
    """Calls, or for `_partial_: true` prepares, the node's `_target_` with its arguments.

    Args:
      key: where in the configuration the node stands, for the messages.
      node: a mapping with `_target_` and the arguments.

    Raises:
      ConfigError: when there is no such target, its arguments do not fit its signature, or it
        refuses them with a ValueError or TypeError.
    """
    target = _locate(key, str(node["_target_"]))
    _check_arguments(key, node, target)
    try:
        return instantiate(dict(node))
    except InstantiationException as error:
        cause = error.__cause__
        if not isinstance(cause, ValueError | TypeError):
            raise
        raise ConfigError(
            Problem(
                f"{key}: {node['_target_']} refuses its arguments",
                f"{type(cause).__name__}: {cause}",
            )
        ) from error


def _locate(key: str, path: str) -> Any:
    try:
        return get_object(path)
    except Exception as error:
        raise ConfigError(
            Problem(
                f"{key}._target_ is {path!r}",
                str(error.__cause__ or error).splitlines()[0],
                "name an importable class or function; the current directory must be on the "
                "Python path for your own modules",
                _neighbours(path),
            )
        ) from error


def _neighbours(path: str) -> tuple[str, ...]:
    """Returns names like the wrong one in the longest part of `path` that can be imported."""
    parts = path.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        close = difflib.get_close_matches(parts[count], dir(module))
        return tuple(".".join([*parts[:count], name]) for name in close)
    return ()


def _check_arguments(key: str, node: Mapping[str, Any], target: Any) -> None:
    try:
        signature = inspect.signature(target)
    except (ValueError, TypeError):
        return  # Some builtins have no signature; calling them tells.
    arguments = {name: value for name, value in node.items() if name not in _HYDRA_KEYS}
    parameters = signature.parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    problems = [
        Problem(
            f"{key}.{name} is not an argument of {node['_target_']}",
            "it is misspelt, or belongs elsewhere",
            choices=nearest(name, parameters, count=max(3, len(parameters))),
        )
        for name in arguments
        if name not in parameters
    ]
    if not node.get("_partial_") and not node.get("_args_"):
        problems += [
            Problem(f"{key}.{name} has no value", f"{node['_target_']} needs it")
            for name, each in parameters.items()
            if each.default is each.empty
            and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
            and name not in arguments
        ]
    if problems:
        raise ConfigError(*problems)
