"""TensorFlow's SessionManager and Scaffold, extended to a warm start from several checkpoints."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import tensorflow as tf

from runner.checkpoints.locate import latest_checkpoint
from runner.errors import ConfigError, Problem
from runner.internals.tensorflow import SessionManagerWithLocalInit
from runner.session.pretrained import label, locate, refuse_overlap, restore

if TYPE_CHECKING:
    from runner.restoration.restorer import Restorer


_Scaffold: TypeAlias = tf.compat.v1.train.Scaffold
_Session: TypeAlias = tf.compat.v1.Session
_Directories: TypeAlias = Sequence[str | os.PathLike[str] | None]
_Function = TypeVar("_Function", bound=Callable[..., Any])

# A session that places operations elsewhere where a program names a device that is not there, as
# Estimator's did.
PLACED_SOFTLY = tf.compat.v1.ConfigProto(allow_soft_placement=True)


def with_arguments_of(base: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Makes `inspect.signature` and `help` list the arguments of `base` before those added to it.

    For a method that takes the arguments of `base` as `*args` and `**kwargs`.
    """

    def decorate(function: _Function) -> _Function:
        own = inspect.signature(function).parameters.values()
        theirs = inspect.signature(base).parameters.values()
        added = [each for each in own if each.kind is each.KEYWORD_ONLY]
        function.__signature__ = inspect.Signature([*theirs, *added])  # type: ignore[attr-defined]
        return function

    return decorate


class Scaffold(tf.compat.v1.train.Scaffold):
    """`tf.compat.v1.train.Scaffold` with two more attributes.

    Attributes:
      name: names the scaffold in messages; empty by default.
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

    On a fresh start `prepare_session` lets the `restorer` initialize and runs the given `init_op`
    and every init of every scaffold, then the given `init_fn`, then restores each scaffold's saver
    from its checkpoint, in order, and what the `restorer` restores; then, as in TensorFlow, the
    local init and the ready check. When there is a checkpoint of the model's own, all of it is
    restored instead, and of the scaffolds and the restorer nothing is used but the scaffolds' local
    inits, which run in every new session.

    When a source cannot be restored, the session is closed: a half-restored one is never returned.

    The scaffolds' savers only ever restore: no saver learns which files a source consists of, so
    none can delete them.
    """

    @with_arguments_of(tf.compat.v1.train.SessionManager.__init__)
    def __init__(
        self,
        *args: Any,
        checkpoint_dirs: _Directories | None = None,
        scaffolds: Sequence[_Scaffold] | None = None,
        target: str = "",
        restorer: Restorer | None = None,
        **kwargs: Any,
    ) -> None:
        """Takes the arguments of `tf.compat.v1.train.SessionManager`, and the sources.

        Sources are not looked for before `prepare_session`.

        Args:
          *args: as in TensorFlow.
          checkpoint_dirs: for each scaffold what its checkpoint is in or at, or None to keep the
            initial values of its variables: a directory of checkpoints, a run directory, a prefix,
            a SavedModel, or a file of any format that the configuration reads too, whose tensors
            have the names in the saver's `var_list`. Only MLflow's addresses and `experiment:NAME`
            are for the configuration alone.
          scaffolds: the scaffolds whose savers restore from these directories. They are plain
            `tf.compat.v1.train.Scaffold`s, finalized or not, or `runner.Scaffold`s.
          target: the TensorFlow master that `prepare_session` uses by default.
          restorer: initializes and, besides the scaffolds, restores what a plan takes from any
            number of sources; built. An `init_op` of `prepare_session` that is more than what its
            `build` returned runs after it has initialized.
          **kwargs: as in TensorFlow.

        Raises:
          ConfigError: when `checkpoint_dirs` and `scaffolds` are not lists of one length.
        """
        super().__init__(*args, **kwargs)
        self._sources = pair_sources(checkpoint_dirs, scaffolds)
        self._default_target = target
        self._restorer = restorer
        self._own_local_init = args[0] if args else kwargs.get("local_init_op")

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

        The arguments are those of `tf.compat.v1.train.SessionManager.prepare_session`; `master`
        defaults to the manager's `target`.

        Raises:
          CheckpointError: when a source has no checkpoint and is not declared optional, or cannot
            be restored; also a ValueError when the newest checkpoint of the model's own is gone.
          RuntimeError: when the model is not ready afterwards.
        """
        if checkpoint_dir and saver is not None:
            latest_checkpoint(checkpoint_dir)  # Raises an error if its newest files are gone.
        if self._sources or self._restorer is not None:
            init_fn = partial(self._initialize_then_restore, init_op, init_feed_dict, init_fn)
            init_op = init_feed_dict = None
        return super().prepare_session(
            self._default_target if master is None else master,
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

    def _initialize_then_restore(
        self,
        init_op: tf.Operation | None,
        init_feed_dict: dict[Any, Any] | None,
        init_fn: Callable[[_Session], None] | None,
        session: _Session,
    ) -> None:
        """Runs both phases as TensorFlow's init function: an init after it would undo a restore.

        It also looks for the sources: TensorFlow calls it only if there is no checkpoint of the
        model's own, for which it may have waited.
        """
        scaffolds, restorer = [scaffold for scaffold, _ in self._sources], self._restorer
        try:
            with session.graph.as_default():
                restores = locate(self._sources)
                build_savers(scaffolds)
                refuse_overlap(restores)
                # Each once: scaffolds without an init of their own share the graph's default.
                inits = {init_op: init_feed_dict}
                for scaffold in scaffolds:
                    inits.setdefault(scaffold.init_op, scaffold.init_feed_dict)
                inits.pop(None, None)
                if restorer is not None and restorer.init_op not in inits:
                    inits = {restorer.init_op: None, **inits}
                for op, feed in inits.items():
                    session.run(op, feed_dict=feed)
                for function in (init_fn, *(scaffold.init_fn for scaffold in scaffolds)):
                    if function is not None:
                        function(session)
                restore(session, restores)
                if restorer is not None:
                    restorer.restore(session)
        except BaseException:
            session.close()
            raise

    def run_more_local_inits(self, session: _Session) -> None:
        """Runs the local inits of the scaffolds."""
        for scaffold, _ in self._sources:
            if scaffold.local_init_op not in (None, self._own_local_init):
                session.run(scaffold.local_init_op, feed_dict=scaffold.local_init_feed_dict)


def pair_sources(
    checkpoint_dirs: _Directories | None, scaffolds: Sequence[_Scaffold] | None
) -> list[tuple[_Scaffold, str | None]]:
    """Returns each scaffold with its checkpoint directory.

    Raises:
      ConfigError: when the two are not lists, of directories and of scaffolds, of one length.
    """
    for name, given in (("checkpoint directories", checkpoint_dirs), ("scaffolds", scaffolds)):
        if isinstance(given, str | os.PathLike) or not isinstance(given, Iterable | None):
            raise ConfigError(
                Problem(f"the {name} are {given!r}", "they are a list", "put it in brackets")
            )
    parts = list(scaffolds or ())
    directories = [None if each is None else os.fspath(each) for each in checkpoint_dirs or ()]
    remedy = "wrap a saver: runner.Scaffold(saver=...)"
    wrong = [
        Problem(f"{each!r} is not a tf.compat.v1.train.Scaffold", remedy=remedy)
        for each in parts
        if not isinstance(each, tf.compat.v1.train.Scaffold)
    ]
    if wrong:
        raise ConfigError(*wrong)
    if len(directories) != len(parts):
        raise ConfigError(
            Problem(
                f"{len(parts)} scaffolds and {len(directories)} checkpoint directories are given",
                "each scaffold restores from the directory at its place in the list",
                "give lists of one length, with None for a scaffold without a checkpoint",
            )
        )
    return list(zip(parts, directories, strict=True))


def build_savers(scaffolds: Sequence[_Scaffold]) -> None:
    """Builds deferred savers while the graph can still grow.

    Raises:
      ConfigError: when a scaffold has no saver: TensorFlow would give it the default one, which
        restores every variable of the model.
    """
    without = [
        Problem(
            f"{label(scaffold)} has no saver",
            "its saver selects the variables that its checkpoint restores",
            "Scaffold(saver=tf.compat.v1.train.Saver(var_list))",
        )
        for scaffold in scaffolds
        if scaffold.saver is None
    ]
    if without:
        raise ConfigError(*without)
    for scaffold in scaffolds:
        scaffold.saver.build()
