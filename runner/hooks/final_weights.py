"""Leaves the weights at the end of training that `keras.Model.fit` leaves, and says which."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tensorflow as tf

from runner.graph.averages import AveragedWeights
from runner.graph.model_values import ModelValues
from runner.hooks.callbacks import CallbacksHook
from runner.hooks.checkpoint import SavedBeside
from runner.hooks.scheduled import Session
from runner.internals.tensorflow import eager_mode


class FinalWeights(tf.compat.v1.train.SessionRunHook, SavedBeside):
    """Replaces the weights by the optimizer's averages where `fit` does, before `on_train_end`.

    A run that ends to be resumed later keeps its weights.

    Args:
      averages: the averages that replace the weights; None where none do.
      values: the model outside of the session; None without a Keras model.
      callbacks: what may change the weights after that, and is saved with them; None for nothing.
      interrupted: whether the run ends to be resumed later.
      in_model: whether the model takes the values of the session at the end.
    """

    def __init__(
        self,
        averages: AveragedWeights | None,
        values: ModelValues | None,
        callbacks: CallbacksHook | None,
        *,
        interrupted: Callable[[], bool],
        in_model: bool,
    ) -> None:
        self._averages, self._values, self._callbacks = averages, values, callbacks
        self._interrupted, self.in_model = interrupted, in_model
        self._are_averages = False

    @property
    def changed_at_end(self) -> bool:  # type: ignore[override]
        """Whether the weights differ from those that the last step left."""
        return self._are_averages or bool(self._changed_by)

    def end(self, session: Session) -> None:
        """Replaces the weights."""
        if self._averages is not None and not self._interrupted():
            self._averages.replace(session)
            self._are_averages = True
            if self._values is not None:
                self._values.forget()

    def store(self, session: Session) -> None:
        """Makes the session hold the state of the callbacks."""
        if self._callbacks is not None:
            self._callbacks.store(session)

    def hand_over(self, session: Session) -> None:
        """Gives the model the values of the session, if it is to have them."""
        if self.in_model and self._values is not None:
            with eager_mode():
                self._values.hand_over(session)

    def lines(self) -> Iterator[str]:
        """Yields a line where the weights are not what the last step left."""
        if self._changed_by:
            yield f"weights: as {', '.join(self._changed_by)} left them at the end of training"
        elif self._are_averages:
            yield "weights: the optimizer's moving averages (use_ema), as at the end of fit"

    @property
    def _changed_by(self) -> list[str]:
        return self._callbacks.changed_by if self._callbacks is not None else []


class HandOver(tf.compat.v1.train.SessionRunHook):
    """Gives the model the result, after everything else."""

    def __init__(self, weights: FinalWeights) -> None:
        self._weights = weights

    def end(self, session: Session) -> None:
        """Gives the model the values."""
        self._weights.hand_over(session)
