"""Creators of sessions that first wait for the other tasks they need."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from runner.cluster.addresses import answers, wait_until_answering
from runner.cluster.channel import Channel
from runner.cluster.server import session_config
from runner.cluster.tasks import parameter_servers
from runner.cluster_config import ClusterConfig
from runner.errors import ClusterError, Problem
from runner.screen import Screen
from runner.session.session_creators import ChiefSessionCreator, WorkerSessionCreator


class ClusterChiefSessionCreator(ChiefSessionCreator):
    """`ChiefSessionCreator` of a cluster's chief.

    Attributes:
      restarted: whether, when the newest session was made, the parameter servers had already been
        initialised by an earlier one.
    """

    restarted = False

    def __init__(self, cluster: ClusterConfig, target: str, **arguments: Any) -> None:
        """Stores the cluster, and takes the arguments of `ChiefSessionCreator`.

        Args:
          cluster: the resolved cluster.
          target: of this task's server.
          **arguments: all but `master` and `config`.
        """
        self._cluster, self._target = cluster, target
        super().__init__(master=target, config=session_config(cluster), **arguments)

    def create_session(self) -> tf.compat.v1.Session:
        """Waits for the parameter servers, and returns a session like its base.

        Raises:
          ClusterError: when they do not answer in time.
        """
        wait_for_servers(self._cluster)
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
        self, cluster: ClusterConfig, target: str, scaffold: tf.compat.v1.train.Scaffold
    ) -> None:
        """Stores the cluster.

        Args:
          cluster: the resolved cluster.
          target: of this task's server.
          scaffold: as in TensorFlow.
        """
        self._cluster, self._target, self._own_scaffold = cluster, target, scaffold
        super().__init__(scaffold, target, session_config(cluster), cluster.max_wait_secs)

    def create_session(self) -> tf.compat.v1.Session:
        """Waits for the parameter servers and the chief, and returns a new session.

        Raises:
          ClusterError: when either does not come in time.
        """
        wait_for_servers(self._cluster)
        try:
            return super().create_session()
        except tf.errors.DeadlineExceededError as error:
            (address,) = self._cluster.addresses.chief
            state = "answers" if answers(address) else "does not answer"
            raise ClusterError(
                Problem(
                    f"the model was not ready within {self._cluster.max_wait_secs:g} s",
                    f"it is the chief at {address} that initialises it, and that {state}",
                    "look at the chief's log; a larger cluster.max_wait_secs waits longer",
                )
            ) from error

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


def wait_for_servers(cluster: ClusterConfig) -> None:
    """Waits until all parameter servers answer, and says so where they do not yet.

    Raises:
      ClusterError: when they do not within `cluster.max_wait_secs`.
    """
    wait_until_answering(
        parameter_servers(cluster),
        cluster.max_wait_secs,
        cluster.recovery_wait_secs,
        say=Screen().line,
    )
