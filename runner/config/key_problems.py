"""The problems of single keys: unknown keys, values that do not fit, and unresolved references."""

from __future__ import annotations

import re
from collections.abc import Iterable

from omegaconf.errors import OmegaConfBaseException

from runner.config.keys import annotation, keys, options, paths, words
from runner.config.schema import RunConfig
from runner.errors import Problem, similar


def unknown_key(key: str, place: str = "") -> Problem:
    """Returns the problem of a dotted key that no structured config has.

    Args:
      key: the key.
      place: the file that sets it, as the beginning of a sentence, or empty.
    """
    state = f"{key} is not a key of the configuration"
    cause = f"{place}it is misspelt, or belongs elsewhere"
    parent, _, name = key.rpartition(".")
    siblings = keys(annotation(parent, RunConfig)) if parent else ()
    if siblings:
        close = similar(name, siblings) or siblings
        return Problem(state, cause, choices=[f"{parent}.{sibling}" for sibling in close])
    close = similar(key, paths(RunConfig))
    if close:
        return Problem(state, cause, choices=close)
    remedy = (
        "arguments of your own classes belong below data, model, loss, metrics, optimizer, hooks, "
        "params or graph; all else is one of the choices"
    )
    return Problem(state, cause, remedy, keys(RunConfig))


def bad_value(key: str, cause: str) -> Problem:
    """Returns the problem of a value that does not fit the annotation of its dotted key."""
    kind = annotation(key, RunConfig)
    choices = options(kind)
    remedy = "" if choices or kind is None else f"give {words(kind)}"
    return Problem(f"{key} has a value that does not fit", cause, remedy, choices)


def unresolved(error: OmegaConfBaseException, known: Iterable[str] = ()) -> Problem:
    """Returns the problem of an interpolation such as `${data.modulus}` that has no value."""
    key = error.full_key or "the configuration"
    first = str(error).splitlines()[0]
    wrong = re.match(r"Interpolation key '(?P<key>[^']+)' not found", first)
    return Problem(
        f"{key} cannot be resolved",
        first,
        f"fix the ${{...}} in {key}" + (", or give the key it names a value" if wrong else ""),
        similar(wrong["key"], known) if wrong else (),
    )
