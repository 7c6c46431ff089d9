"""The arguments of `train_and_evaluate`: `tf.estimator.TrainSpec` and `tf.estimator.EvalSpec`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from runner.estimator.exporters import Exporter
from runner.estimator.spec import checked_hooks
from runner.session.session_manager import with_arguments_of


class _Train(NamedTuple):
    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Any = None
    saving_listeners: Any = None


class TrainSpec(_Train):
    """`tf.estimator.TrainSpec`: how to train.

    Attributes:
      input_fn: returns a `tf.data.Dataset` or tensors.
      max_steps: the global step at which training ends; None, the default, never ends it.
      hooks: of the training.
      saving_listeners: `tf.compat.v1.train.CheckpointSaverListener`s.

    Raises:
      ValueError: when `max_steps` is not positive.
      TypeError: when another argument is of the wrong type.
    """

    __slots__ = ()

    @with_arguments_of(_Train.__new__)
    def __new__(cls, *args: Any, **kwargs: Any) -> TrainSpec:
        """Checks the fields."""
        given = _Train(*args, **kwargs)
        _check_input_fn(given.input_fn)
        check_positive(max_steps=given.max_steps)
        hooks = checked_hooks(given.hooks, "`SessionRunHook`")
        listeners = checked_listeners(given.saving_listeners)
        return super().__new__(cls, given.input_fn, given.max_steps, hooks, listeners)


class _Eval(NamedTuple):
    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    hooks: Any = None
    exporters: Any = None
    start_delay_secs: float = 120
    throttle_secs: float = 600


class EvalSpec(_Eval):
    """`tf.estimator.EvalSpec`: how to evaluate, and what to export.

    Attributes:
      input_fn: returns a `tf.data.Dataset` or tensors.
      steps: how many batches are evaluated, by default 100; None evaluates all.
      name: distinguishes this evaluation from others, in the name of its directory.
      hooks: of the evaluation.
      exporters: one or several, called after each evaluation.
      start_delay_secs: seconds before an evaluator of a cluster begins, by default 120.
      throttle_secs: seconds between evaluations at least, by default 600.

    Raises:
      ValueError: when a number is out of its bounds, or exporters are named wrongly.
      TypeError: when another argument is of the wrong type.
    """

    __slots__ = ()

    @with_arguments_of(_Eval.__new__)
    def __new__(cls, *args: Any, **kwargs: Any) -> EvalSpec:
        """Checks the fields."""
        given = _Eval(*args, **kwargs)
        _check_input_fn(given.input_fn)
        check_positive(steps=given.steps)
        if given.name is not None and not isinstance(given.name, str):
            raise TypeError(f"`name` must be string, given: {given.name}")
        for name in ("start_delay_secs", "throttle_secs"):
            if getattr(given, name) < 0:
                raise ValueError(f"Must specify {name} >= 0, given: {getattr(given, name)}")
        exporters = _exporters(given.exporters)
        hooks = checked_hooks(given.hooks, "`SessionRunHook`")
        return super().__new__(cls, *given[:3], hooks, exporters, *given[5:])


def checked_listeners(listeners: Iterable[Any] | None) -> tuple[Any, ...]:
    """Returns the listeners as a tuple.

    Raises:
      TypeError: when one is not a `tf.compat.v1.train.CheckpointSaverListener`.
    """
    found = tuple(listeners or ())
    for each in found:
        if not isinstance(each, tf.compat.v1.train.CheckpointSaverListener):
            raise TypeError(
                f"All saving_listeners must be `CheckpointSaverListener` instances, given: {each}"
            )
    return found


def check_positive(**given: int | None) -> None:
    """Checks numbers of steps, where None means no limit.

    Raises:
      ValueError: when one is not positive.
    """
    for name, value in given.items():
        if value is not None and value <= 0:
            raise ValueError(f"Must specify {name} > 0, given: {value}")


def _check_input_fn(input_fn: Any) -> None:
    if not callable(input_fn):
        raise TypeError(f"`input_fn` must be callable, given: {input_fn}")


def _exporters(exporters: Any) -> tuple[Exporter, ...]:
    given = [exporters] if isinstance(exporters, Exporter) else exporters or ()
    if not isinstance(given, Iterable) or not all(isinstance(each, Exporter) for each in given):
        raise TypeError(
            "`exporters` must be an Exporter, an iterable of Exporter, or `None`, found "
            f"{exporters}."
        )
    names = [each.name for each in given]
    listed = f"All exporter names: {names}"
    for name in names:
        if not name:
            raise ValueError(f"An Exporter cannot have a name that is `None` or empty. {listed}")
        if not isinstance(name, str):
            raise ValueError(f"An Exporter must have a string name. Given: {type(name)}")
    if len(set(names)) < len(names):
        raise ValueError(
            "`exporters` must have unique names. Such a name cannot be `None`. " + listed
        )
    return tuple(given)
