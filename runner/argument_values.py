"""Tells values of arguments that cannot be meant, by the annotations of who takes them."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin

from runner.references import has_reference

_SCALARS = (bool, int, float, str, types.NoneType)


def cannot_be_meant(value: Any, annotation: Any, default: Any = None) -> bool:
    """Whether a value of the configuration cannot be what an annotation asks for.

    Only annotations of `bool`, `int`, `float`, `str`, None and unions of these are looked at. A
    number passes for another one, and for a text, because it often works as such; a text, null, a
    list or a mapping does not pass for a number, nor 0.5 for a whole one.

    Args:
      value: what the configuration says.
      annotation: the parameter's.
      default: the parameter's; null is never refused where that is the default.
    """
    kinds = _kinds(annotation)
    if not kinds or has_reference(value):
        return False
    if value is None:
        return types.NoneType not in kinds and default is not None
    if isinstance(value, str):
        return str not in kinds
    if isinstance(value, Mapping):
        return "_target_" not in value  # Of which another object is built.
    if isinstance(value, float) and not value.is_integer():
        return float not in kinds and str not in kinds
    return isinstance(value, list)


def _kinds(annotation: Any) -> tuple[type, ...]:
    """Returns the scalar types that are allowed; none where anything else is, or only None."""
    united = get_origin(annotation) in (Union, types.UnionType)
    given = get_args(annotation) if united else (annotation,)
    found = tuple(known for each in given for known in _SCALARS if each is known)
    return found if len(found) == len(given) and found != (types.NoneType,) else ()
