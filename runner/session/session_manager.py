"""TensorFlow's SessionManager and Scaffold, extended to a warm start from several checkpoints."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar

import tensorflow as tf

from runner.checkpoints.contents import LostCheckpointError
from runner.checkpoints.files import is_remote
from runner.checkpoints.locate import latest_checkpoint
from runner.internals.tensorflow import SessionManagerWithLocalInit
from runner.restoration.restorer import WarmStarter
from runner.session.pretrained import Directories, PretrainedScaffolds, Scaffolds
from runner.session.waiting import waits_reported

_Scaffold: TypeAlias = tf.compat.v1.train.Scaffold
_Session: TypeAlias = tf.compat.v1.Session
_Function = TypeVar("_Function", bound=Callable[..., Any])

# A session that places operations elsewhere where a program names a device that is not there, as
# Estimator's did.
PLACED_SOFTLY = tf.compat.v1.ConfigProto(allow_soft_placement=True)


def with_arguments_of(base: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Makes `inspect.signature` and `help` list the arguments of `base` before those added to it.

    For a method that takes the arguments of `base` as `*args` and `**kwargs`.
    """

    def decorate(function: _Function) -> _Function:
        inherited = inspect.signature(base).parameters.values()
        added = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
        ]
        function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*inherited, *added]
        )
        return function

    return decorate


class Scaffold(tf.compat.v1.train.Scaffold):
    """`tf.compat.v1.train.Scaffold` with two more attributes.

    Attributes:
      name: names the scaffold in messages; by default they give its position in the list.
      optional: True allows its checkpoint to be absent; its variables then keep their initial
        values. False by default.
    """

    @with_arguments_of(tf.compat.v1.train.Scaffold.__init__)
    def __init__(self, *args: Any, name: str = "", optional: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.name = name
        self.optional = optional


class SessionManager(SessionManagerWithLocalInit):
    """`tf.compat.v1.train.SessionManager` that warm-starts from several checkpoints.

    On a fresh start `prepare_session` runs its `init_op`, the inits of all scaffolds and its
    `init_fn`, then restores the saver of every scaffold from its checkpoint; then, as in
    TensorFlow, the local init and the ready check. When the model itself has a checkpoint, all of
    it is restored instead, and only the scaffolds' local inits are used, which run in every new
    session.

    Missing tensors and misfits are reported before anything is initialized. When a source cannot be
    restored, the session is closed: a half-restored one is never returned.

    The scaffolds' savers only ever restore: no saver learns which files a source consists of, so
    none can delete them.
    """

    @with_arguments_of(tf.compat.v1.train.SessionManager.__init__)
    def __init__(
        self,
        *args: Any,
        checkpoint_dirs: Directories | None = None,
        scaffolds: Scaffolds | None = None,
        target: str = "",
        restorer: WarmStarter | None = None,
        **kwargs: Any,
    ) -> None:
        """Takes the arguments of `tf.compat.v1.train.SessionManager`, and the sources.

        Sources are not looked for before `prepare_session`.

        Args:
          *args: as in TensorFlow.
          checkpoint_dirs: for each scaffold the location of its checkpoint, or None to keep the
            initial values of its variables: a directory of checkpoints, a run directory, a prefix,
            a SavedModel, or a file of any format that the configuration reads too, whose tensors
            have the names in the saver's `var_list`. Only MLflow's addresses and `experiment:NAME`
            are for the configuration alone. One path is a list of one.
          scaffolds: the scaffolds whose savers restore from these directories, or one of them. They
            are plain `tf.compat.v1.train.Scaffold`s, finalized or not, or `runner.Scaffold`s.
          target: the TensorFlow master that `prepare_session` uses by default.
          restorer: initializes and restores instead of scaffolds.
          **kwargs: as in TensorFlow.

        Raises:
          ConfigError: when `checkpoint_dirs` and `scaffolds` differ in length.
        """
        super().__init__(*args, **kwargs)
        self._restorer: WarmStarter = restorer or PretrainedScaffolds(checkpoint_dirs, scaffolds)
        self._default_target = target
        self._model_local_init_op = args[0] if args else kwargs.get("local_init_op")

    def prepare_session(
        self,
        master: str | None = None,
        init_op: tf.Operation | None = None,
        saver: tf.compat.v1.train.Saver | None = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: int = 7200,
        config: tf.compat.v1.ConfigProto | None = None,
        init_feed_dict: dict[Any, Any] | None = None,
        init_fn: Callable[[_Session], None] | None = None,
    ) -> _Session:
        """Returns a new session whose model is initialized or restored.

        It takes the arguments of `tf.compat.v1.train.SessionManager.prepare_session`; `master`
        defaults to the manager's `target`.

        Raises:
          CheckpointError: when a source has no checkpoint and is not declared optional, or cannot
            be restored; a ValueError too when the model's newest checkpoint is gone.
          RuntimeError: when the model is not ready afterwards.
        """
        if checkpoint_dir and saver is not None:
            _require_newest(os.fsdecode(checkpoint_dir))
        if self._restorer:
            init_fn = partial(self._warm_start, init_op, init_feed_dict, init_fn)
            init_op = init_feed_dict = None
        master = self._default_target if master is None else master
        with waits_reported(master, config):
            return super().prepare_session(
                master,
                init_op=init_op,
                saver=saver,
                checkpoint_dir=checkpoint_dir,
                checkpoint_filename_with_path=checkpoint_filename_with_path,
                wait_for_checkpoint=wait_for_checkpoint,
                max_wait_secs=max_wait_secs,
                config=config,
                init_feed_dict=init_feed_dict,
                init_fn=init_fn,
            )

    def wait_for_session(
        self,
        master: str,
        config: tf.compat.v1.ConfigProto | None = None,
        max_wait_secs: float = float("Inf"),
    ) -> _Session:
        """Returns a new session once another process has made the model ready, as TensorFlow's."""
        with waits_reported(master, config, for_chief=True):
            return super().wait_for_session(master, config=config, max_wait_secs=max_wait_secs)

    def _warm_start(
        self,
        init_op: tf.Operation | None,
        init_feed_dict: dict[Any, Any] | None,
        init_fn: Callable[[_Session], None] | None,
        session: _Session,
    ) -> None:
        """Runs both phases as TensorFlow's init function: an init after it would undo a restore.

        TensorFlow calls it only if the model has no checkpoint, for which it may have waited.
        """
        try:
            with session.graph.as_default():
                self._restorer.warm_start(session, init_op, init_feed_dict, init_fn=init_fn)
        except BaseException:
            session.close()
            raise

    def run_more_local_inits(self, session: _Session) -> None:
        """Runs the local inits of the scaffolds."""
        for operation, feeds in self._restorer.local_inits.items():
            if operation is not self._model_local_init_op:
                session.run(operation, feeds)


def _require_newest(directory: str) -> None:
    """Checks that the model's newest checkpoint is there: TensorFlow would start over silently.

    Raises:
      LostCheckpointError: when the `checkpoint` file leads to no checkpoint.
    """
    if not is_remote(directory):
        latest_checkpoint(directory)
        return
    # TensorFlow reads and writes in places for which fsspec may not be installed.
    state = tf.train.get_checkpoint_state(directory)
    if state is not None and tf.train.latest_checkpoint(directory) is None:
        raise LostCheckpointError.of(
            f"the `checkpoint` file in {directory} names {state.model_checkpoint_path}",
            "no such checkpoint is there",
            "restore the files from a copy, or delete the `checkpoint` file",
        )
