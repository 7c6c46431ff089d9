"""Calls Keras callbacks as `keras.Model.fit` does, with a model that has the session's values."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from runner.config.epochs import Epochs, logs_in_order
from runner.graph.model_values import ModelValues
from runner.hooks.callback_state import attributes, dumped, loaded, restore, unsaved
from runner.hooks.evaluation_hook import EvaluationWatch
from runner.hooks.scheduled import (
    Session,
    SessionRunArgs,
    SessionRunContext,
    SessionRunValues,
    present_step,
)
from runner.internals.tensorflow import assign_in_session, eager_mode
from runner.system.user_code import ERRORS, raised, staying

_Callback: TypeAlias = keras.callbacks.Callback

# Callbacks of Keras that never read weights, and those that do when an epoch or the training ends
# only, unless `save_freq` counts batches. For callbacks of one's own, and those that call one's own
# functions, the weights are there in every method.
_WITHOUT_WEIGHTS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.TerminateOnNaN,
)
_WEIGHTS_AT_ENDS = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
)


class NamedCallback:
    """A callback of the configuration, and which methods it has.

    Args:
      key: its key in the configuration, for messages.
      callback: the callback.
    """

    def __init__(self, key: str, callback: _Callback) -> None:
        self.key, self.callback = key, callback

    def has(self, method: str) -> bool:
        """Returns whether the callback has a method of its own, for the whole class or itself."""
        names = [method]
        if method.startswith("on_train_batch_"):
            names.append(method.replace("train_", ""))
        return any(
            getattr(getattr(self.callback, name), "__func__", None) is not getattr(_Callback, name)
            for name in names
        )

    def needs_weights(self, method: str) -> bool:
        """Returns whether the method may read the model's weights."""
        kind = type(self.callback)
        if kind in _WEIGHTS_AT_ENDS and getattr(self.callback, "save_freq", "epoch") == "epoch":
            is_read = getattr(self.callback, "restore_best_weights", True)
            return is_read and method in ("on_epoch_end", "on_train_end")
        return kind not in _WITHOUT_WEIGHTS

    def call(self, method: str, *arguments: Any, **named: Any) -> None:
        """Calls a method.

        Raises:
          UserCodeError: in place of the error that it raises.
        """
        try:
            with staying():
                getattr(self.callback, method)(*arguments, **named)
        except ERRORS as error:
            raise raised(self.key, error) from error


class CallbacksHook(tf.compat.v1.train.SessionRunHook, EvaluationWatch):
    """Calls callbacks around the steps, evaluations and epochs of a training.

    It comes before the `EvaluationHook`, and `epoch_ends` after it, so that the end of an epoch
    has the values of its evaluation. What the callbacks change of the model, the session takes.

    Their state is in checkpoints: whoever saves calls `store` before. A resumed run calls
    `on_train_begin`, and then restores what it changed.

    Args:
      callbacks: the callbacks, in order.
      values: the model that they see, and its values.
      metrics: metric name -> its value since the beginning of the epoch, after the train op.
      of_epoch: the same of the epoch, for its end.
      saved: the variable by which checkpoints hold the state of the callbacks, a string.
      step: the global step after the train op has run.
      epochs: the epochs of the run.
      last_epoch: the number of the last one.
      interrupted: whether the run ends to be resumed later, without the end of its training.
      report: takes a line about a callback.
      changed: called after callbacks have changed values of a session.
      record: takes the metrics of an epoch that a callback ends early, what callbacks have added
        to the logs of an epoch or changed there, and the global step.
    """

    def __init__(
        self,
        callbacks: Sequence[NamedCallback],
        values: ModelValues,
        metrics: Mapping[str, tf.Tensor],
        of_epoch: Mapping[str, tf.Tensor],
        saved: tf.Variable,
        *,
        step: tf.Tensor,
        epochs: Epochs,
        last_epoch: int,
        interrupted: Callable[[], bool],
        report: Callable[[str], None],
        changed: Callable[[Session], None],
        record: Callable[[Mapping[str, float], Mapping[str, float], int], None],
    ) -> None:
        self._changed, self._record = changed, record
        self._callbacks, self._values, self._metrics = callbacks, values, metrics
        self._of_epoch, self._saved = of_epoch, saved
        self._step_after, self._epochs, self._last_epoch = step, epochs, last_epoch
        self._interrupted, self._report = interrupted, report
        self.epoch_ends = _EpochEnds(self)
        self._logs: dict[str, float] = {}
        # The values of an evaluation after the newest step.
        self._evaluated: dict[str, float] = {}
        self._step, self._is_open, self._has_ended = 0, False, False
        # The keys of callbacks that have changed the model at the end of training.
        self.changed_by: list[str] = []
        self._first_state: bytes | None = None

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        """Begins the training, or continues it with the callbacks as the checkpoint has them."""
        self._step, self._is_open = present_step(session), False
        self._values.forget()
        saved = session.run(self._saved)
        is_first = self._first_state is None
        if is_first:
            self._begin(session, resumes=bool(saved))
        if saved or not is_first:
            self._restore(saved or self._first_state)
        if self.model.stop_training:  # The process died before it could end the run.
            coord.request_stop()

    @property
    def model(self) -> Any:
        """The model that the callbacks see."""
        return self._values.model

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Begins an epoch and a batch, and fetches the metrics of the epoch."""
        session = run_context.session
        if not self._is_open:
            self._is_open = True
            self.call(session, "on_epoch_begin", self._epoch)
        self.call(session, "on_train_batch_begin", self._epochs.place(self._step))
        return SessionRunArgs((self._step_after, dict(self._metrics), dict(self._of_epoch)))

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Ends the batch."""
        step, values, of_epoch = run_values.results
        self._values.forget()
        self._evaluated = {}
        batch = self._epochs.place(self._step)
        logs = {name: float(value) for name, value in values.items()}
        self._logs = {name: float(value) for name, value in of_epoch.items()}
        self._step = int(step)
        self.call(run_context.session, "on_train_batch_end", batch, logs=logs)

    def call(
        self,
        session: Session,
        method: str,
        *arguments: Any,
        logs: Mapping[str, float] | None = None,
        push: bool = True,
    ) -> bool:
        """Calls a method of all callbacks that have it; returns whether the model has changed."""
        return self._call(self._callbacks, session, method, *arguments, logs=logs, push=push)

    def _call(
        self,
        callbacks: Sequence[NamedCallback],
        session: Session,
        method: str,
        *arguments: Any,
        logs: Mapping[str, Any] | None = None,
        push: bool = True,
    ) -> bool:
        called = [callback for callback in callbacks if callback.has(method)]
        if not called:
            return False
        logs = {} if logs is None else logs
        # As in `fit`: by name for batches, else by position.
        by_name = {"logs": logs} if "_batch_" in method else {}
        by_position = () if by_name else (logs,)
        with eager_mode(), self._values.restored_on_error(session):
            for callback in called:
                self._values.pull(session, weights=callback.needs_weights(method))
                callback.call(method, *arguments, *by_position, **by_name)
            has_changed = self._values.push(session, changes=push)
        if has_changed:
            self._changed(session)
        return has_changed

    def end_epoch_if_due(self, run_context: SessionRunContext) -> None:
        """Ends the epoch after its last step, or at once where a callback stops the training."""
        if self.asks() or self._epochs.place(self._step) == 0:
            self._end_epoch(run_context.session)
        if self.model.stop_training:
            run_context.request_stop()

    def end_training(self, session: Session) -> None:
        """Ends the last epoch and the training, unless the run is to be resumed."""
        if self._interrupted():
            return
        if self._is_open:
            self._end_epoch(session)
        logs = logs_in_order(self._logs)
        for callback in self._callbacks:
            if self._call([callback], session, "on_train_end", logs=logs):
                self.changed_by.append(callback.key)
        self._has_ended = True

    def asks(self) -> bool:
        """Returns whether a callback stops the training, which ends the epoch."""
        return bool(self.model.stop_training)

    def begins(self, session: Session) -> None:
        """Begins an evaluation, for which the session may have other values."""
        self._values.forget()
        self._test_batches = 0
        self.call(session, "on_test_begin")

    @property
    def sees_batches(self) -> bool:  # type: ignore[override]
        """Whether a callback has a method for the batches of an evaluation."""
        methods = ("on_test_batch_begin", "on_test_batch_end")
        return any(callback.has(method) for callback in self._callbacks for method in methods)

    def batch(self, session: Session, metrics: Mapping[str, float]) -> None:
        """Begins and ends a batch of an evaluation."""
        self.call(session, "on_test_batch_begin", self._test_batches)
        logs = dict(sorted(metrics.items()))
        self.call(session, "on_test_batch_end", self._test_batches, logs=logs)
        self._test_batches += 1

    def ends(self, session: Session, metrics: Mapping[str, float]) -> None:
        """Ends an evaluation."""
        self._evaluated = {f"val_{name}": value for name, value in metrics.items()}
        self.call(session, "on_test_end", logs=dict(sorted(metrics.items())))
        self._values.forget()

    def store(self, session: Session) -> None:
        """Makes the session hold the state of the callbacks, for a checkpoint."""
        assign_in_session(session, [(self._saved, self._state())])

    @property
    def _epoch(self) -> int:
        return self._epochs.done(self._step)

    def _begin(self, session: Session, *, resumes: bool) -> None:
        """Begins the training in this process."""
        self.model.stop_training = False
        params = {"verbose": 0, "epochs": self._last_epoch, "steps": self._epochs.length}
        for named in self._callbacks:
            callback = named.callback
            if resumes and isinstance(callback, keras.callbacks.CSVLogger):
                callback.append = True
                _cut_rows(Path(callback.filename), callback.sep, self._epoch)
            with eager_mode(), self._values.restored_on_error(session):
                if named.has("set_model"):
                    self._values.pull(session, weights=named.needs_weights("set_model"))
                named.call("set_model", self.model)
                named.call("set_params", params)
                if self._values.push(session, changes=not resumes):
                    self._changed(session)
            if names := unsaved(callback):
                self._report(
                    f"{named.key}: a resumed run begins with a new {', '.join(names)}; checkpoints "
                    "hold numbers, strings, arrays, variables and lists and mappings of them"
                )
        self.call(session, "on_train_begin", push=not resumes)
        self._first_state = self._state()

    def _state(self) -> bytes:
        return dumped(
            {
                "callbacks": {
                    named.key: attributes(named.callback, self._values.holds)
                    for named in self._callbacks
                    if not isinstance(named.callback, keras.callbacks.CSVLogger)
                },
                # A run that has ended may be extended.
                "stops": bool(self.model.stop_training) and not self._has_ended,
                "is_open": self._is_open,
                "logs": self._logs,
            }
        )

    def _restore(self, saved: bytes | None) -> None:
        state = loaded(saved or b"")
        for named in self._callbacks:
            restore(named.callback, state["callbacks"].get(named.key, {}))
        self.model.stop_training, self._is_open = state["stops"], state["is_open"]
        self._logs = state["logs"]
        self._values.forget()

    def _end_epoch(self, session: Session) -> None:
        self._values.forget()  # An evaluation that was cut had other ones.
        self._logs |= self._evaluated
        self._is_open = False
        epoch = self._epochs.done(self._step - 1)
        # Callbacks share what they add, after what Keras gives them by name.
        logs: dict[str, Any] = {**logs_in_order(self._logs)}
        self.call(session, "on_epoch_end", epoch, logs=logs)
        metrics = self._logs if self._epochs.place(self._step) else {}
        changed = {name: value for name, value in logs.items() if value is not self._logs.get(name)}
        self._record(
            {name: value for name, value in metrics.items() if name not in self._evaluated},
            dict(_numbers(changed)),
            self._step,
        )


class _EpochEnds(tf.compat.v1.train.SessionRunHook):
    """The part of a `CallbacksHook` that comes after the evaluation."""

    def __init__(self, hook: CallbacksHook) -> None:
        self._hook = hook

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Ends the epoch, if it is over."""
        self._hook.end_epoch_if_due(run_context)

    def end(self, session: Session) -> None:
        """Ends the training."""
        self._hook.end_training(session)


def _numbers(logs: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the numbers among logs, to which callbacks may add anything."""
    for name, value in logs.items():
        # Lists may be ragged.
        array = np.asarray(None if isinstance(value, list | tuple) else value)
        if array.size == 1 and array.dtype.kind in "biuf":
            yield name, float(array.reshape([]))


def _cut_rows(file: Path, separator: str, epoch: int) -> None:
    """Deletes the rows of epochs that a resumed run logs again."""
    if not file.is_file():
        return
    header, *rows = file.read_bytes().decode().splitlines(keepends=True) or [""]
    former = [row for row in rows if int(next(csv.reader([row], delimiter=separator))[0]) < epoch]
    file.write_bytes("".join([header, *former]).encode())
