"""Creators of sessions that first wait for the other tasks they need."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import tensorflow as tf

from runner.cluster.channel import Channel, flags_of_a_session, ready_flags
from runner.cluster.server import cluster_session, session_config, telling_losses
from runner.config.cluster_spec import (
    answers,
    own_name,
    parameter_servers,
    telling_tasks,
    trainers,
    wait_until_answering,
)
from runner.config.schema import ClusterConfig
from runner.errors import ClusterError, Problem
from runner.session.monitored_session import ChiefSessionCreator, WorkerSessionCreator

_Say: TypeAlias = Callable[[str], None]
_Agree: TypeAlias = Callable[[], None]
# Makes what a signal may end at once, having nothing to save.
Waiting: TypeAlias = Callable[[], AbstractContextManager[None]]


class ClusterChiefSessionCreator(ChiefSessionCreator):
    """`ChiefSessionCreator` of a cluster's chief.

    Attributes:
      restarted: whether, when the newest session was made, the parameter servers had already been
        initialised by an earlier one.
    """

    restarted = False

    def __init__(
        self,
        cluster: ClusterConfig,
        target: str,
        waiting: Waiting = nullcontext,
        *,
        run: str = "",
        say: _Say = lambda line: None,
        agree: _Agree = lambda: None,
        **arguments: Any,
    ) -> None:
        """Stores the cluster, and takes the arguments of `ChiefSessionCreator`.

        Args:
          cluster: the resolved cluster.
          target: of this task's server.
          waiting: gives the context in which a session is made.
          run: the run's directory, relative to the configured `run_dir`, for the evaluator.
          say: is told whom it waits for.
          agree: is called when the servers answer, before others may go on.
          **arguments: all but `master` and `config`.
        """
        self._cluster, self._target = cluster, target
        self._waiting, self._run, self._say, self._agree = waiting, run, say, agree
        super().__init__(master=target, config=session_config(cluster), **arguments)

    def create_session(self) -> tf.compat.v1.Session:
        """Waits for the parameter servers, and returns a session like its base.

        Workers learn first that the model is made anew, and go on when it is ready: what they added
        meanwhile would be part of it.

        Raises:
          ClusterError: when the servers do not answer in time.
        """
        with self._waiting(), telling_losses():
            wait_for_servers(self._cluster, self._say)
            self._agree()
            self._begin_anew()
            session = super().create_session()
            self._channel.undo(session, int(session.run(tf.compat.v1.train.get_global_step())))
            session.run(self._ready)
            return cluster_session(session)

    def _begin_anew(self) -> None:
        cluster = self._cluster
        step = tf.compat.v1.train.get_global_step()
        if not tf.compat.v1.get_default_graph().finalized:
            flags = flags_of_a_session(cluster.ps)
            self._unset = [each.unset for each in flags]
            self._ready = [each.set for each in ready_flags(cluster.ps)]
            self._channel = Channel(telling_tasks(cluster))
            self._is_known = tf.raw_ops.VarIsInitializedOp(resource=step.handle)
        with tf.compat.v1.Session(self._target, config=session_config(cluster)) as session:
            self.restarted = bool(session.run(self._is_known))
            session.run(self._unset)
            self._channel.lead(session, self._run)
        if self.restarted and len(trainers(cluster)) > 1:
            time.sleep(cluster.recovery_wait_secs)  # Steps in flight end meanwhile.


class ClusterWorkerSessionCreator(WorkerSessionCreator):
    """`WorkerSessionCreator` of a cluster's worker."""

    def __init__(
        self,
        cluster: ClusterConfig,
        target: str,
        scaffold: tf.compat.v1.train.Scaffold,
        waiting: Waiting = nullcontext,
        *,
        say: _Say = lambda line: None,
        agree: _Agree = lambda: None,
    ) -> None:
        """Stores the cluster.

        Args:
          cluster: the resolved cluster.
          target: of this task's server.
          scaffold: as in TensorFlow.
          waiting: gives the context in which a session is waited for.
          say: is told whom it waits for.
          agree: is called before each look at the model, and when it is ready.
        """
        self._cluster, self._target, self._own_scaffold = cluster, target, scaffold
        self._waiting, self._say, self._agree = waiting, say, agree
        # One look at each call: TensorFlow does not tell that it waits.
        super().__init__(scaffold, target, session_config(cluster), max_wait_secs=0)

    def create_session(self) -> tf.compat.v1.Session:
        """Waits for the parameter servers and the chief, and returns a new session.

        Raises:
          ClusterError: when either does not come in time, or `agree` raises it.
        """
        with self._waiting(), telling_losses():
            wait_for_servers(self._cluster, self._say)
            if not tf.compat.v1.get_default_graph().finalized:
                self._channel = Channel(telling_tasks(self._cluster))
            session = self._when_ready()
            self._channel.begin(session, own_name(self._cluster))
            return cluster_session(session)

    def _when_ready(self) -> tf.compat.v1.Session:
        (address,) = self._cluster.addresses.chief
        limit = self._cluster.max_wait_secs
        deadline = time.monotonic() + limit
        told = False
        while True:
            self._agree()
            try:
                session = super().create_session()
                self._agree()
                return session
            except tf.errors.DeadlineExceededError as error:
                if time.monotonic() >= deadline:
                    raise ClusterError(self._not_ready(address)) from error
            if not told:
                self._say(
                    f"waits for the chief at {address} to make the model ready, {limit:g} s at most"
                )
                told = True
            time.sleep(self._cluster.recovery_wait_secs)

    def _not_ready(self, address: str) -> Problem:
        state = "answers" if answers(address) else "does not answer"
        return Problem(
            f"the model was not ready within {self._cluster.max_wait_secs:g} s",
            f"it is the chief at {address} that initialises it, and that {state}",
            "look at the chief's log; a larger cluster.max_wait_secs waits longer",
        )

    def _get_session_manager(self) -> tf.compat.v1.train.SessionManager:
        # Private, for want of anything public: TensorFlow's creator always waits 30 s between two
        # looks at the model.
        scaffold = self._own_scaffold
        return tf.compat.v1.train.SessionManager(
            local_init_op=scaffold.local_init_op,
            local_init_feed_dict=scaffold.local_init_feed_dict,
            ready_op=scaffold.ready_op,
            ready_for_local_init_op=scaffold.ready_for_local_init_op,
            graph=tf.compat.v1.get_default_graph(),
            recovery_wait_secs=self._cluster.recovery_wait_secs,
        )


def wait_for_servers(cluster: ClusterConfig, say: _Say = lambda line: None) -> None:
    """Waits until all parameter servers answer.

    Args:
      cluster: the resolved cluster.
      say: is told whom it waits for.

    Raises:
      ClusterError: when they do not within `cluster.max_wait_secs`.
    """
    wait_until_answering(
        parameter_servers(cluster), cluster.max_wait_secs, cluster.recovery_wait_secs, say=say
    )
