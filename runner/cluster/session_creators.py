"""Creators of sessions that first wait for the other tasks they need."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from runner.cluster.addresses import answers, wait_until_answering
from runner.cluster.channel import Channel
from runner.cluster.server import session_config
from runner.cluster.tasks import parameter_servers
from runner.cluster_config import ClusterConfig
from runner.errors import ClusterError, Problem
from runner.session.session_creators import ChiefSessionCreator, WorkerSessionCreator

_Say = Callable[[str], None]
_Check = Callable[[], None]


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
        *,
        say: _Say = lambda line: None,
        check: _Check = lambda: None,
        **arguments: Any,
    ) -> None:
        """Stores the cluster, and takes the arguments of `ChiefSessionCreator`.

        Args:
          cluster: the resolved cluster.
          target: of this task's server.
          say: is told whom it waits for.
          check: called while it waits; it raises where a signal has come.
          **arguments: all but `master` and `config`.
        """
        self._cluster, self._target = cluster, target
        self._say, self._check = say, check
        super().__init__(master=target, config=session_config(cluster), **arguments)

    def create_session(self) -> tf.compat.v1.Session:
        """Waits for the parameter servers, and returns a session like its base.

        Raises:
          ClusterError: when they do not answer in time.
        """
        wait_for_servers(self._cluster, self._say, self._check)
        step = tf.compat.v1.train.get_global_step()
        if not tf.compat.v1.get_default_graph().finalized:
            self._ready = [each.set for each in Channel.ready(self._cluster.ps)]
            self._is_known = tf.raw_ops.VarIsInitializedOp(resource=step.handle)
        with tf.compat.v1.Session(self._target, config=session_config(self._cluster)) as session:
            self.restarted = bool(session.run(self._is_known))
        session = super().create_session()
        session.run(self._ready)
        return session


class ClusterWorkerSessionCreator(WorkerSessionCreator):
    """`WorkerSessionCreator` of a cluster's worker."""

    def __init__(
        self,
        cluster: ClusterConfig,
        target: str,
        scaffold: tf.compat.v1.train.Scaffold,
        say: _Say = lambda line: None,
        check: _Check = lambda: None,
    ) -> None:
        """Stores the cluster.

        Args:
          cluster: the resolved cluster.
          target: of this task's server.
          scaffold: as in TensorFlow.
          say: is told whom it waits for.
          check: called while it waits; it raises where a signal has come.
        """
        self._cluster, self._target, self._own_scaffold = cluster, target, scaffold
        self._say, self._check = say, check
        # One look at each call: TensorFlow would wait itself, and heed no signal.
        super().__init__(scaffold, target, session_config(cluster), max_wait_secs=0)

    def create_session(self) -> tf.compat.v1.Session:
        """Waits for the parameter servers and the chief, and returns a new session.

        Raises:
          ClusterError: when either does not come in time.
        """
        wait_for_servers(self._cluster, self._say, self._check)
        (address,) = self._cluster.addresses.chief
        deadline = time.monotonic() + self._cluster.max_wait_secs
        told = False
        while True:
            try:
                return super().create_session()
            except tf.errors.DeadlineExceededError as error:
                self._check()
                if time.monotonic() >= deadline:
                    raise ClusterError(self._not_ready(address)) from error
            if not told:
                limit = self._cluster.max_wait_secs
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


def wait_for_servers(
    cluster: ClusterConfig, say: _Say = lambda line: None, check: _Check = lambda: None
) -> None:
    """Waits until all parameter servers answer.

    Args:
      cluster: the resolved cluster.
      say: is told whom it waits for.
      check: called while it waits; it raises where a signal has come.

    Raises:
      ClusterError: when they do not within `cluster.max_wait_secs`.
    """
    wait_until_answering(
        parameter_servers(cluster),
        cluster.max_wait_secs,
        cluster.recovery_wait_secs,
        say=say,
        check=check,
    )
