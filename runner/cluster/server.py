"""TensorFlow's server of one task, and the sessions on it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from runner.config.cluster_spec import (
    addresses_by_type,
    answers,
    not_answering,
    parameter_servers,
    trainers,
)
from runner.config.schema import PS, ClusterConfig, RunConfig
from runner.errors import ClusterError, ConfigError, LostServerError, Problem
from runner.session.cached_session import CachedSession


def start_server(config: RunConfig) -> tf.compat.v1.train.Server:
    """Starts the server of this process's task.

    Raises:
      ConfigError: when it cannot listen at its address.
    """
    task = config.cluster.task
    if task.type is None:
        raise ValueError("this process is no task of a cluster")
    try:
        return tf.compat.v1.train.Server(
            tf.train.ClusterSpec(addresses_by_type(config.cluster)),
            job_name=task.type,
            task_index=task.index,
            config=tf.compat.v1.ConfigProto(
                intra_op_parallelism_threads=config.session.intra_op_threads,
                inter_op_parallelism_threads=max(config.session.inter_op_threads, 0),
            ),
        )
    except tf.errors.OpError as error:
        address = addresses_by_type(config.cluster)[task.type][task.index]
        raise ConfigError(
            Problem(
                f"{task.type} {task.index} cannot listen at {address}",
                str(error.message).partition("\n")[0],
                "give the task another address",
            )
        ) from error


def session_config(cluster: ClusterConfig) -> tf.compat.v1.ConfigProto:
    """Returns the configuration of a task's sessions.

    They see the parameter servers and their own task, so that the loss of another worker is not
    theirs. The bodies of functions are put into the graph: whole, a function would have to find
    all variables it reads on one machine. A loop in one, such as that of an LSTM, hands its
    variables through an operation that can be on one machine only, and soft placement lets that
    be; variables stay where they are.
    """
    config = tf.compat.v1.ConfigProto(
        device_filters=[f"/job:{PS}", f"/job:{cluster.task.type}/task:{cluster.task.index}"]
    )
    config.graph_options.optimizer_options.do_function_inlining = True
    config.allow_soft_placement = True
    if cluster.synchronous:
        # A step waits for other workers, which may never come.
        config.operation_timeout_in_ms = int(cluster.max_wait_secs * 1000)
    return config


def remote_config() -> tf.compat.v1.ConfigProto:
    """Returns the configuration of short sessions on the first parameter server from outside."""
    config = tf.compat.v1.ConfigProto(device_filters=[f"/job:{PS}/task:0"])
    config.operation_timeout_in_ms = 10_000
    return config


@contextmanager
def naming_the_missing(cluster: ClusterConfig) -> Iterator[None]:
    """Explains an operation that waited too long, or was cut off, by the tasks that are missing.

    Raises:
      ClusterError: in place of TensorFlow's error; a `LostServerError` where a server was lost
        and the session could not recover, as at its end.
    """
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
        tasks = parameter_servers(cluster)
        missing = [f"{name} at {each}" for name, each in tasks.items() if not answers(each)]
        raise LostServerError(
            Problem(
                f"{', '.join(missing) or 'a parameter server'} was lost at the end of training",
                "what came after the last checkpoint, the last evaluation too, is lost with it",
                "start it again if nobody does; the same command continues the run",
            )
        ) from error
    except tf.errors.DeadlineExceededError as error:
        tasks = trainers(cluster) | parameter_servers(cluster)
        missing = [name for name, address in tasks.items() if not answers(address)]
        if missing:
            raise ClusterError(not_answering(tasks, missing, cluster.max_wait_secs)) from error
        raise ClusterError(
            Problem(
                f"a step has not ended within {cluster.max_wait_secs:g} s",
                "all tasks answer, but one of them gives no gradients, or is slower than that",
                "look at their logs; a larger cluster.max_wait_secs waits longer",
            )
        ) from error


# Where several parts of a step fail, TensorFlow lists their errors so, and raises one of a kind
# that only the first of them has.
_LOST = re.compile(rf"^(?:ABORTED|UNAVAILABLE): From /job:{PS}/", re.MULTILINE)


class ClusterSession(CachedSession):
    """`CachedSession` that raises what a monitored session recovers from when a server is lost.

    TensorFlow may raise `CancelledError` of the part of the step on this machine, which was
    cancelled because of that.
    """

    def run(self, *arguments: Any, **options: Any) -> Any:
        """Runs a step; arguments and errors are those of `tf.compat.v1.Session.run`.

        Raises:
          tf.errors.AbortedError: also when a parameter server is lost, and the step cancelled.
        """
        with telling_losses():
            return super().run(*arguments, **options)


@contextmanager
def telling_losses() -> Iterator[None]:
    """Raises an `AbortedError` in place of a `CancelledError` of which a lost server is the cause.

    Raises:
      tf.errors.AbortedError: with the text of that error.
    """
    try:
        yield
    except tf.errors.CancelledError as error:
        if _LOST.search(str(error.message)) is None:
            raise
        raise tf.errors.AbortedError(error.node_def, error.op, error.message) from error


def cluster_session(session: tf.compat.v1.Session) -> tf.compat.v1.Session:
    """Makes a `ClusterSession` of a `CachedSession`, which stays the same object."""
    session.__class__ = ClusterSession
    return session
