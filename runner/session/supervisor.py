"""TensorFlow's Supervisor, extended to several scaffolds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from runner.errors import ConfigError, Problem
from runner.session.cached_session import cached
from runner.session.session_manager import SessionManager, build_savers, pair_sources

_Scaffold: TypeAlias = tf.compat.v1.train.Scaffold


class Supervisor(tf.compat.v1.train.Supervisor):
    """`tf.compat.v1.train.Supervisor` that may start from several checkpoints.

    When `logdir` holds no checkpoint of the model's own, everything is initialised, and then each
    scaffold's variables are restored from its checkpoint.
    """

    def __init__(
        self,
        *args: Any,
        pretrained_checkpoint_dirs: Sequence[str | None] | None = None,
        pretrained_scaffolds: Sequence[_Scaffold] | None = None,
        **kwargs: Any,
    ) -> None:
        """Takes the arguments of `tf.compat.v1.train.Supervisor` besides.

        Args:
          *args: as in TensorFlow.
          pretrained_checkpoint_dirs: for each pretrained scaffold the directory or prefix of its
            checkpoint, or None to initialise.
          pretrained_scaffolds: scaffolds whose savers restore just their subset of the variables.
          **kwargs: as in TensorFlow.

        Raises:
          ConfigError: when the two lists differ in length, or are given beside a session manager.
        """
        pair_sources(pretrained_checkpoint_dirs, pretrained_scaffolds)
        self._pretrained = (pretrained_checkpoint_dirs, pretrained_scaffolds)
        super().__init__(*args, **kwargs)

    def prepare_or_wait_for_session(self, *args: Any, **kwargs: Any) -> tf.compat.v1.Session:
        """As in TensorFlow; the session is a `CachedSession`."""
        return cached(super().prepare_or_wait_for_session(*args, **kwargs))

    def _init_session_manager(self, session_manager: Any = None) -> None:
        # Private, for want of anything public: the operations that the manager is given are made
        # in TensorFlow's constructor, which finalises the graph before it returns.
        if session_manager is None:
            with self._graph.as_default():
                build_savers(self._pretrained[1] or ())
            session_manager = SessionManager(
                *self._pretrained,
                graph=self._graph,
                ready_op=self.ready_op,
                ready_for_local_init_op=self.ready_for_local_init_op,
                local_init_op=self._local_init_op,
                recovery_wait_secs=self._recovery_wait_secs,
                local_init_run_options=self._local_init_run_options,
            )
        elif self._pretrained[1]:
            raise ConfigError(
                Problem(
                    "a session manager and pretrained scaffolds are given",
                    "it is the manager that restores",
                    "give them to it: SessionManager(checkpoint_dirs, scaffolds)",
                )
            )
        super()._init_session_manager(session_manager)
