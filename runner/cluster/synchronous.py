"""Updates that combine one gradient from each worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from runner.config.cluster_spec import replica_index
from runner.config.schema import ClusterConfig
from runner.graph.optimization import Gradients

_Session: TypeAlias = tf.compat.v1.Session
# Errors of an update when a server is lost, besides those that a monitored session recovers from:
# the update is cancelled, or a variable on the restarted server is not initialised.
_LOST = (tf.errors.CancelledError, tf.errors.FailedPreconditionError)


class SynchronousUpdate:
    """One update of the variables for one gradient of each worker.

    Like `tf.compat.v1.train.SyncReplicasOptimizer`, it averages gradients in an accumulator beside
    each variable, which drops gradients of an earlier step, and the chief applies the averages.
    Unlike it, it clips the averages, as one process does with a batch of all workers' examples, and
    it gives each worker a queue of tokens, see `Tokens`.

    Args:
      optimizer: applies the averages.
      gradients: the gradients of this worker.
      change: changes the averages before they are applied.
      global_step: counts the updates.
      cluster: the resolved configuration; an update takes one gradient of each worker but the
        backups.

    Attributes:
      train_op: adds this worker's gradients, and waits for the update.
      update_op: run by the chief; waits for the gradients, applies them and hands out tokens.
      tokens: the tokens of all workers.
      missing: names of the variables that are not initialised, strings [n].
      start_op: sets the first step for which this worker's gradients count.
      chief_start_op: sets that step for the accumulators too.
    """

    def __init__(
        self,
        optimizer: tf.compat.v1.train.Optimizer,
        gradients: Gradients,
        change: Callable[[Gradients], Gradients],
        *,
        global_step: tf.Variable,
        cluster: ClusterConfig,
    ) -> None:
        self.tokens = Tokens(global_step, cluster.workers, replica_index(cluster))
        local_step = _local_variable(global_step.dtype.base_dtype)
        aggregated = cluster.workers - cluster.backup
        averages: Gradients = []
        added, set_steps = [], []
        for gradient, variable in gradients:
            if gradient is None:
                averages.append((None, variable))
                continue
            with tf.device(variable.device):
                accumulator, add, take = _accumulator(gradient, variable)
                added.append(add(gradient, local_step.read_value()))
                # Outside the control dependencies of a worker's step.
                with tf.control_dependencies(None):
                    averages.append((take(aggregated), variable))
                    set_steps.append(accumulator.set_global_step(global_step.read_value()))
        with tf.control_dependencies(added):
            token = self.tokens.take()
        self.train_op: tf.Operation = local_step.assign(token, read_value=False)
        with tf.control_dependencies(None), tf.name_scope(""):
            with tf.device(global_step.device):
                applied = optimizer.apply_gradients(change(averages), global_step)
                with tf.control_dependencies([applied]):
                    self.update_op = self.tokens.hand_out(global_step.read_value())
            self.start_op = local_step.assign(global_step.read_value(), read_value=False)
            self.chief_start_op = tf.group(self.start_op, *set_steps)
            # TensorFlow warns where the function's own result goes unused, as in mode=plan.
            self.missing = tf.identity(
                tf.compat.v1.report_uninitialized_variables(tf.compat.v1.global_variables())
            )

    def hook(
        self, restarted: Callable[[], bool] | None = None, poll_secs: float = 1.0
    ) -> tf.compat.v1.train.SessionRunHook:
        """Returns the hook that prepares each session.

        Args:
          restarted: for the chief, returns whether an earlier session had initialised the parameter
            servers; None for a worker.
          poll_secs: how often the chief checks that the servers still hold its variables.
        """
        return _SynchronousHook(self, restarted, poll_secs)


def _local_variable(dtype: tf.DType) -> tf.Variable:
    with tf.control_dependencies(None):
        task_device = tf.no_op().device
        # Named, so that it is not placed on a parameter server.
        with tf.device(task_device):
            return tf.compat.v1.Variable(
                tf.zeros([], dtype),
                trainable=False,
                collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
                name="cluster_local_step",
                use_resource=True,
            )


def _accumulator(gradient: Any, variable: tf.Variable) -> tuple[Any, Any, Any]:
    """Returns the accumulator of a variable's gradients, and its functions to add and to take.

    An added gradient is dropped if its step is over. Taking waits for a number of gradients, and
    returns their average.
    """
    name = f"{variable.name}/grad_accum"
    if isinstance(gradient, tf.IndexedSlices):
        sparse = tf.compat.v1.SparseConditionalAccumulator(gradient.dtype, (), shared_name=name)
        return sparse, sparse.apply_indexed_slices_grad, sparse.take_indexed_slices_grad
    dense = tf.compat.v1.ConditionalAccumulator(gradient.dtype, variable.shape, shared_name=name)
    return dense, dense.apply_grad, dense.take_grad


class Tokens:
    """A queue of tokens for each worker, beside the global step.

    A token is the global step after an update; a worker resumes with its next batch when it gets
    one. `SyncReplicasOptimizer` keeps the tokens of all workers in one queue, where another worker
    may take the token of one that is late or was killed: a single worker may then make update after
    update, none waits, and a checkpoint or an evaluation of the chief mixes several steps.

    Args:
      global_step: counts the updates.
      workers: the number of workers.
      index: the index of this worker; the chief is 0.

    Attributes:
      drop_op: drops this worker's tokens, if any.
      wake_others_op: gives a token to each worker but this one.
    """

    def __init__(self, global_step: tf.Variable, workers: int, index: int) -> None:
        self._device = global_step.device
        with tf.control_dependencies(None), tf.device(self._device):
            self._queues = [
                tf.queue.FIFOQueue(
                    -1, [global_step.dtype.base_dtype], [[]], shared_name=f"cluster_tokens_{worker}"
                )
                for worker in range(workers)
            ]
            self._queue = queue = self._queues[index]
            self.drop_op = tf.group(queue.dequeue_many(queue.size()))
            token = global_step.read_value()
            others = [other for other in self._queues if other is not queue]
            self.wake_others_op = tf.group(*(other.enqueue(token) for other in others))

    def take(self) -> tf.Tensor:
        """Waits for a token of this worker, takes all of them and returns the newest, a scalar."""
        with tf.device(self._device):
            first = self._queue.dequeue()
            with tf.control_dependencies([first]):
                later = self._queue.dequeue_many(self._queue.size())
            return tf.concat([first[tf.newaxis], later], 0)[-1]

    def hand_out(self, token: tf.Tensor) -> tf.Operation:
        """Returns the operation that gives a token, a scalar, to each worker."""
        with tf.device(self._device):
            return tf.group(*(queue.enqueue(token) for queue in self._queues))


class _SynchronousHook(tf.compat.v1.train.SessionRunHook):
    """Prepares sessions for synchronous updates, which the chief makes in a thread.

    TensorFlow's own hook hands out a set of tokens at the start, so that a worker may give two
    gradients for the first update, and be ahead of the others ever after. Here a first start hands
    out none, and each update has one gradient of each worker. A restarted chief does not know which
    worker waits for a token that was lost with it, and hands out one to each.
    """

    def __init__(
        self, update: SynchronousUpdate, restarted: Callable[[], bool] | None, poll_secs: float
    ) -> None:
        self._update, self._restarted, self._poll_secs = update, restarted, poll_secs
        self._threads: list[threading.Thread] = []
        self._ending = False

    def after_create_session(self, session: _Session, coord: tf.train.Coordinator) -> None:
        """Sets the first steps for which gradients count.

        Raises:
          tf.errors.AbortedError: when a variable is no longer initialised, so that a new session is
            created.
        """
        self._require_initialized(session)
        # Before the local step is set: an update whose token is dropped is counted by then, so that
        # this worker's next gradient is not too old.
        session.run(self._update.tokens.drop_op)
        if self._restarted is None:
            session.run(self._update.start_op)
            return
        session.run(self._update.chief_start_op)
        if self._restarted():
            session.run(self._update.tokens.wake_others_op)
        # Not the coordinator's threads: at the end one waits for gradients that do not come, and
        # TensorFlow would wait two minutes for that thread, which closing the session ends.
        self._threads = [
            threading.Thread(target=target, args=(session, coord), daemon=True)
            for target in (self._make_updates, self._watch_servers)
        ]

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        """Starts the threads with the session's first step.

        Until then other hooks prepare the session. If a thread had closed it, such a hook could not
        know that a server is lost, and no other session would be created.
        """
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.start()

    def end(self, session: _Session) -> None:
        """Wakes the workers that wait for an update that will not come."""
        self._ending = True
        if self._restarted is not None:
            session.run(self._update.tokens.wake_others_op)

    def _make_updates(self, session: _Session, coord: tf.train.Coordinator) -> None:
        while not coord.should_stop():
            self._try(lambda: session.run(self._update.update_op), session, coord)

    def _watch_servers(self, session: _Session, coord: tf.train.Coordinator) -> None:
        """Checks that all servers still hold the variables.

        An update waits for a worker at the servers that lack its gradient. If another server is
        lost meanwhile, nothing else would notice, and the worker would wait for that server.
        """
        while not coord.wait_for_stop(self._poll_secs):
            self._try(lambda: self._require_initialized(session), session, coord)

    def _require_initialized(self, session: _Session) -> None:
        missing = session.run(self._update.missing)
        if missing.size:
            raise tf.errors.AbortedError(None, None, f"not initialised: {missing}")

    def _try(
        self, action: Callable[[], object], session: _Session, coord: tf.train.Coordinator
    ) -> None:
        """Acts; where that fails, requests a stop, so that the session's next step raises it."""
        try:
            action()
        except tf.errors.DeadlineExceededError:
            pass  # The chief's own step waits too, and its error names the missing tasks.
        except Exception as error:  # noqa: BLE001 - the session's next step raises it
            if coord.should_stop():
                return
            raised = error
            if isinstance(error, _LOST):  # A monitored session recovers from this one.
                raised = tf.errors.AbortedError(error.node_def, error.op, error.message)
            coord.request_stop((type(raised), raised, error.__traceback__))
            if not self._ending:
                # The chief's own step waits for an update, at a server that may live.
                session.close()
