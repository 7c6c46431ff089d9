"""The arguments of `fit`, checked before anything is created."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from typing import Any

from runner.errors import ConfigError, Problem

# Argument -> the least whole number that it takes, and whether it may be None.
_WHOLE = {
    "epochs": (1, False),
    "initial_epoch": (0, False),
    "seed": (0, False),
    "batch_size": (1, True),
    "steps_per_epoch": (1, True),
    "validation_steps": (1, True),
    "validation_batch_size": (1, True),
}


def checked(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments of `fit` with numbers of NumPy as Python's, and callbacks as a list.

    A `validation_split` of 0, the default of Keras, is None.

    Raises:
      ConfigError: with every one of a wrong type or range.
    """
    problems = list(_problems(arguments))
    if problems:
        raise ConfigError(*problems)
    plain = dict(arguments)
    for name in _WHOLE:
        if plain.get(name) is not None:
            plain[name] = int(plain[name])
    plain["validation_split"] = plain.get("validation_split") or None
    if plain.get("callbacks"):
        plain["callbacks"] = _listed(plain["callbacks"])
    if plain.get("class_weight"):
        weights = plain["class_weight"]
        plain["class_weight"] = {int(key): float(value) for key, value in weights.items()}
    return plain


def _problems(arguments: Mapping[str, Any]) -> Iterator[Problem]:
    for name, (least, optional) in _WHOLE.items():
        value = arguments.get(name, least)
        if not ((optional and value is None) or _is_whole(value, least)):
            yield Problem(f"{name} is {value!r}", f"it must be a whole number, at least {least}")
    split = arguments.get("validation_split") or 0.0
    if not (_is_number(split) and 0 <= split < 1):
        yield Problem(f"validation_split is {split!r}", "it must be a part, from 0 to below 1")
    frequency = arguments.get("validation_freq", 1)
    listed = frequency if isinstance(frequency, list | tuple | set) else [frequency]
    if not all(_is_whole(value, 1) for value in listed):
        cause = "it must be a whole number of epochs, at least 1, or a list of epochs"
        yield Problem(f"validation_freq is {frequency!r}", cause)
    weights = arguments.get("class_weight")
    if weights is not None and not (
        isinstance(weights, Mapping)
        and all(_is_whole(key, 0) and _is_number(value) for key, value in weights.items())
    ):
        cause = "it must map classes, which are whole numbers, to their weights"
        yield Problem(f"class_weight is {weights!r}", cause, "for example {0: 1.0, 1: 3.0}")
    for name, kind in (("scaffolds", Mapping), ("name", str)):
        value = arguments.get(name)
        if value is not None and not isinstance(value, kind):
            known = "a mapping of names to keys" if kind is Mapping else "a string"
            yield Problem(f"{name} is {value!r}", f"it must be {known}")
    yield from _callback_problems(arguments.get("callbacks"))


def _callback_problems(callbacks: Any) -> Iterator[Problem]:
    import keras

    for callback in _listed(callbacks) if callbacks else ():
        if isinstance(callback, keras.callbacks.Callback):
            continue
        is_class = isinstance(callback, type) and issubclass(callback, keras.callbacks.Callback)
        kind = (
            f"the class {callback.__name__}"
            if is_class
            else f"of the type {type(callback).__name__}"
        )
        remedy = f"construct it: {callback.__name__}()" if is_class else "leave it out"
        yield Problem(f"a callback is {kind}", "it must be a keras.callbacks.Callback", remedy)


def _listed(callbacks: Any) -> list[Any]:
    """Returns callbacks as a list, without the progress bar that a `CallbackList` adds."""
    import keras

    if not isinstance(callbacks, keras.callbacks.CallbackList):
        return [*keras.tree.flatten(callbacks)]
    bar = keras.callbacks.ProgbarLogger
    return [callback for callback in callbacks.callbacks if not isinstance(callback, bar)]


def _is_whole(value: Any, least: int) -> bool:
    return type(value) is not bool and isinstance(value, Integral) and int(value) >= least


def _is_number(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, Real)
