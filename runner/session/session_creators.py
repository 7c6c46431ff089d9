"""Creators of sessions for chiefs and workers, extended to several scaffolds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

from runner.session.cached_session import cached
from runner.session.session_manager import SessionManager, build_savers, pair_sources

if TYPE_CHECKING:
    from runner.restoration.restorer import Restorer


_Scaffold: TypeAlias = tf.compat.v1.train.Scaffold


class ChiefSessionCreator(tf.compat.v1.train.ChiefSessionCreator):
    """`tf.compat.v1.train.ChiefSessionCreator` that warm-starts from several checkpoints.

    Every call of `create_session` gives a new session, so that a recovered session never meets a
    closed one.
    """

    def __init__(
        self,
        scaffold: _Scaffold | None = None,
        master: str = "",
        config: tf.compat.v1.ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        pretrained_checkpoint_dirs: Sequence[str | os.PathLike[str] | None] | None = None,
        pretrained_scaffolds: Sequence[_Scaffold] | None = None,
        restorer: Restorer | None = None,
    ) -> None:
        """Takes TensorFlow's arguments and the sources of a warm start.

        Args:
          scaffold: as in TensorFlow.
          master: as in TensorFlow.
          config: as in TensorFlow.
          checkpoint_dir: as in TensorFlow.
          checkpoint_filename_with_path: as in TensorFlow.
          pretrained_checkpoint_dirs: see `SessionManager`.
          pretrained_scaffolds: see `SessionManager`; of the same length.
          restorer: see `SessionManager`; built.

        Raises:
          ConfigError: when the lists differ in length.
        """
        self.scaffold = scaffold or tf.compat.v1.train.Scaffold()
        super().__init__(self.scaffold, master, config, checkpoint_dir)
        pair_sources(pretrained_checkpoint_dirs, pretrained_scaffolds)
        self._prepare: dict[str, Any] = {
            "master": master,
            "config": config,
            "checkpoint_dir": checkpoint_dir,
            "checkpoint_filename_with_path": checkpoint_filename_with_path,
        }
        self._pretrained = (pretrained_checkpoint_dirs, pretrained_scaffolds)
        self._restorer = restorer

    def create_session(self) -> tf.compat.v1.Session:
        """Finalises the scaffold and the graph, and returns a new, ready session."""
        build_savers(self._pretrained[1] or ())
        scaffold = self.scaffold.finalize()
        manager = SessionManager(
            *self._pretrained,
            restorer=self._restorer,
            local_init_op=scaffold.local_init_op,
            local_init_feed_dict=scaffold.local_init_feed_dict,
            ready_op=scaffold.ready_op,
            ready_for_local_init_op=scaffold.ready_for_local_init_op,
            graph=tf.compat.v1.get_default_graph(),
        )
        session = manager.prepare_session(
            saver=scaffold.saver,
            init_op=scaffold.init_op,
            init_feed_dict=scaffold.init_feed_dict,
            init_fn=scaffold.init_fn,
            **self._prepare,
        )
        return cached(session)


class WorkerSessionCreator(tf.compat.v1.train.WorkerSessionCreator):
    """`tf.compat.v1.train.WorkerSessionCreator` whose sessions are `CachedSession`s."""

    def create_session(self) -> tf.compat.v1.Session:
        """Waits for the chief to make the model ready, and returns a new session."""
        return cached(super().create_session())


class CachingSessionCreator(tf.compat.v1.train.SessionCreator):
    """Makes `CachedSession`s of the plain sessions of any other creator."""

    def __init__(self, creator: tf.compat.v1.train.SessionCreator) -> None:
        """Stores the creator."""
        self._creator = creator

    def create_session(self) -> tf.compat.v1.Session:
        """Returns a new session of the creator."""
        return cached(self._creator.create_session())
