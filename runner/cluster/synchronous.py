"""Updates that are made of one gradient from each worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from runner.graph.optimization import Gradients

_Optimizer: TypeAlias = tf.compat.v1.train.Optimizer
# What else than the errors that a monitored session recovers from the loss of a server may raise in
# an update: it is cancelled, or finds a variable of the server's successor not initialised.
_LOST = (tf.errors.CancelledError, tf.errors.FailedPreconditionError)


@dataclass(frozen=True)
class Synchronization:
    """How many workers make an update.

    Attributes:
      aggregated: so many gradients are averaged; those of slower workers are dropped.
      workers: how many train.
      index: which of them this one is; the chief is 0.
    """

    aggregated: int
    workers: int
    index: int = 0


class SynchronousUpdate:
    """`tf.compat.v1.train.SyncReplicasOptimizer` around an optimizer.

    The gradients are averaged first and then changed, so that clipping is that of one process with
    a batch as large as those of all workers together. Each worker has tokens of its own, see
    `Tokens`.

    Attributes:
      train_op: hands in this worker's gradients, and waits until the update is made.
    """

    def __init__(
        self,
        optimizer: _Optimizer,
        gradients: Gradients,
        change: Callable[[Gradients], Gradients],
        global_step: tf.Variable,
        synchronization: Synchronization,
    ) -> None:
        """Adds the update to the default graph.

        Args:
          optimizer: applies what the workers have handed in.
          gradients: of this worker.
          change: is applied to the averages.
          global_step: counts the updates.
          synchronization: how many workers there are.
        """
        self._synchronizer = tf.compat.v1.train.SyncReplicasOptimizer(
            _Changed(optimizer, change),
            replicas_to_aggregate=synchronization.aggregated,
            total_num_replicas=synchronization.workers,
        )
        shared = self._synchronizer.apply_gradients(gradients, global_step=global_step).op
        self._tokens = Tokens(global_step, synchronization.workers, synchronization.index)
        # It sets the local step to a token of the shared queue, when the gradients are handed in.
        local_step, token = shared.inputs
        with tf.control_dependencies(token.op.control_inputs):
            own = self._tokens.take()
        with tf.device(local_step.device):
            self.train_op: tf.Operation = tf.raw_ops.AssignVariableOp(
                resource=local_step, value=own
            )

    def hook(
        self, restarted: Callable[[], bool] | None = None, look_secs: float = 1.0
    ) -> tf.compat.v1.train.SessionRunHook:
        """Returns what prepares each session.

        Args:
          restarted: of the chief, whether its newest session is not the first that the parameter
            servers have seen; None for a worker.
          look_secs: how often the chief looks whether the servers still hold its variables.
        """
        return _SynchronousHook(self._synchronizer, self._tokens, restarted, look_secs)


class _Changed(_Optimizer):
    """An optimizer that changes gradients before it applies them."""

    def __init__(self, optimizer: _Optimizer, change: Callable[[Gradients], Gradients]) -> None:
        super().__init__(use_locking=False, name=optimizer.get_name())
        self._optimizer, self._change = optimizer, change

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> tf.Operation:
        """Applies the changed gradients."""
        return self._optimizer.apply_gradients(
            self._change(list(grads_and_vars)), global_step, name
        )


class _SynchronousHook(tf.compat.v1.train.SessionRunHook):
    """What TensorFlow's own hook does, but for the tokens.

    A worker goes on to its next batch when it gets a token. TensorFlow's hook hands out a set of
    them at the start, so that a worker may give two gradients for the first update, and be ahead
    of the others ever after. Here a first start hands out none, and each update has one gradient
    of each worker. A chief that comes back does not know who waits for a token that was lost with
    it, and hands out one for each of the others.
    """

    def __init__(
        self,
        synchronizer: tf.compat.v1.train.SyncReplicasOptimizer,
        tokens: Tokens,
        restarted: Callable[[], bool] | None,
        look_secs: float,
    ) -> None:
        self._synchronizer, self._tokens = synchronizer, tokens
        self._restarted, self._look_secs = restarted, look_secs
        self._threads: list[threading.Thread] = []
        self._ending = False

    def begin(self) -> None:
        """Adds what hands out tokens, and takes them back."""
        self._drop = self._tokens.drop()
        if self._restarted is not None:
            self._wake = self._tokens.wake_others()
            (shared,) = self._synchronizer.get_chief_queue_runner().enqueue_ops
            self._update = self._tokens.hand_out(shared.inputs[1])

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Sets the steps from which on gradients count.

        Raises:
          tf.errors.AbortedError: when a variable is not initialised any more, so that a new session
            is made.
        """
        self._require_initialized(session)
        # Before the local step is set: whoever drops the token of an update has it counted then,
        # and its next gradient is not too old.
        session.run(self._drop)
        if self._restarted is None:
            session.run(self._synchronizer.local_step_init_op)
            return
        session.run(self._synchronizer.chief_init_op)
        if self._restarted():
            session.run(self._wake)
        # Not the coordinator's threads: at the end one waits for gradients that do not come,
        # and TensorFlow would wait two minutes for it, until closing the session ends it.
        self._threads = [
            threading.Thread(target=each, args=(session, coord), daemon=True)
            for each in (self._collect, self._watch)
        ]

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        """Begins to collect with the session's first step.

        Until then other hooks prepare it, and who finds it closed cannot tell that a server is
        lost, so that no other would be made.
        """
        threads, self._threads = self._threads, []
        for each in threads:
            each.start()

    def _collect(self, session: tf.compat.v1.Session, coord: tf.train.Coordinator) -> None:
        """Makes one update after another of what the workers hand in."""
        while not coord.should_stop():
            try:
                session.run(self._update)
            except tf.errors.DeadlineExceededError:
                continue  # The chief's own step waits too, and its error says for whom.
            except Exception as error:  # noqa: BLE001 - the session's next step raises it
                self._fail(error, session, coord)
                return

    def _watch(self, session: tf.compat.v1.Session, coord: tf.train.Coordinator) -> None:
        """Looks whether all servers still hold the variables.

        An update waits for a worker at the servers that lack its gradient. Where another one is
        lost meanwhile, nobody would notice, and the worker would wait for that to be made ready.
        """
        while not coord.wait_for_stop(self._look_secs):
            try:
                self._require_initialized(session)
            except tf.errors.DeadlineExceededError:
                continue
            except Exception as error:  # noqa: BLE001 - the session's next step raises it
                self._fail(error, session, coord)
                return

    def _require_initialized(self, session: tf.compat.v1.Session) -> None:
        without = session.run(self._synchronizer.ready_for_local_init_op)
        if without.size:
            raise tf.errors.AbortedError(None, None, f"not initialised: {without}")

    def _fail(
        self, error: Exception, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        if coord.should_stop():
            return
        _report(error, coord)
        if not self._ending:
            # The chief's own step waits for an update at a server that may live, and would wait on.
            session.close()

    def end(self, session: tf.compat.v1.Session) -> None:
        """Wakes the workers that wait for an update that will not be."""
        self._ending = True
        if self._restarted is not None:
            session.run(self._wake)


def _report(error: Exception, coord: tf.train.Coordinator) -> None:
    """Requests a stop because of an error of an update, as one to recover from if it is that."""
    try:
        if isinstance(error, _LOST):
            raise tf.errors.AbortedError(error.node_def, error.op, error.message) from error
        raise error
    except Exception as told:  # noqa: BLE001 - the coordinator raises it again
        coord.request_stop(told)


class Tokens:
    """A queue of tokens for each worker, beside the global step.

    A token is the global step after an update. `SyncReplicasOptimizer` keeps those of all workers
    in one queue, where the token of a worker that is late, or was killed, goes to another: one
    worker alone may then make update after update, nobody waits, and a checkpoint or an evaluation
    of the chief's is not of one step.
    """

    def __init__(self, global_step: tf.Variable, workers: int, index: int) -> None:
        """Adds the queues to the default graph.

        Args:
          global_step: counts the updates.
          workers: how many there are.
          index: which of them this one is; the chief is 0.
        """
        self._step, self._index = global_step, index
        with tf.control_dependencies(None), tf.device(global_step.device):
            self._queues = [
                tf.queue.FIFOQueue(
                    -1, [global_step.dtype.base_dtype], [[]], shared_name=f"cluster_tokens_{each}"
                )
                for each in range(workers)
            ]

    def take(self) -> tf.Tensor:
        """Returns this worker's newest token, a scalar, once there is one; it takes them all."""
        own = self._queues[self._index]
        with tf.device(self._step.device):
            first = own.dequeue()
            with tf.control_dependencies([first]):
                others = own.dequeue_many(own.size())
            return tf.concat([first[tf.newaxis], others], 0)[-1]

    def drop(self) -> tf.Operation:
        """Returns what takes this worker's tokens, of which there may be none."""
        own = self._queues[self._index]
        with tf.device(self._step.device):
            return tf.group(own.dequeue_many(own.size()))

    def hand_out(self, tokens: tf.Tensor) -> tf.Operation:
        """Returns what gives each worker one.

        Args:
          tokens: equal ones, of shape [n].
        """
        with tf.device(self._step.device):
            token = tokens[0]
            return tf.group(*(each.enqueue(token) for each in self._queues))

    def wake_others(self) -> tf.Operation:
        """Returns what gives one to each worker but this one."""
        with tf.device(self._step.device):
            token = self._step.read_value()
            others = [each for i, each in enumerate(self._queues) if i != self._index]
            return tf.group(*(each.enqueue(token) for each in others))
