"""TensorFlow's monitored sessions, session creators and Supervisor, with several scaffolds."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from runner.errors import ConfigError
from runner.internals.tensorflow import (
    SupervisorWithManager,
    init_singular_session,
    worker_context,
)
from runner.restoration.restorer import WarmStarter
from runner.session.cached_session import cached
from runner.session.pretrained import Directories, PretrainedScaffolds, Scaffolds
from runner.session.session_manager import SessionManager, with_arguments_of

_Scaffold: TypeAlias = tf.compat.v1.train.Scaffold
_Hook: TypeAlias = tf.compat.v1.train.SessionRunHook
# TensorFlow's default of arguments for which None turns a hook off.
_USE_DEFAULT: Any = (
    inspect.signature(tf.compat.v1.train.MonitoredTrainingSession)
    .parameters["save_checkpoint_secs"]
    .default
)


class ChiefSessionCreator(tf.compat.v1.train.ChiefSessionCreator):
    """`tf.compat.v1.train.ChiefSessionCreator` that warm-starts from several checkpoints.

    Every call of `create_session` returns a new session, so that a recovered session is never a
    closed one.
    """

    def __init__(
        self,
        scaffold: _Scaffold | None = None,
        master: str = "",
        config: tf.compat.v1.ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
        *,
        pretrained_checkpoint_dirs: Directories | None = None,
        pretrained_scaffolds: Scaffolds | None = None,
        restorer: WarmStarter | None = None,
    ) -> None:
        """Takes TensorFlow's arguments and the sources of a warm start.

        The last three are the `checkpoint_dirs`, `scaffolds` and `restorer` of `SessionManager`.

        Raises:
          ConfigError: when the lists differ in length.
        """
        self.scaffold = scaffold or tf.compat.v1.train.Scaffold()
        super().__init__(self.scaffold, master, config, checkpoint_dir)
        self._restorer: WarmStarter = restorer or PretrainedScaffolds(
            pretrained_checkpoint_dirs, pretrained_scaffolds
        )
        self._target = master
        self._session_arguments: dict[str, Any] = {
            "config": config,
            "checkpoint_dir": checkpoint_dir,
            "checkpoint_filename_with_path": checkpoint_filename_with_path,
        }

    def create_session(self) -> tf.compat.v1.Session:
        """Finalizes the scaffold and the graph, and returns a new, ready session."""
        self._restorer.build()
        scaffold = self.scaffold.finalize()
        session = _session_manager(scaffold, self._restorer).prepare_session(
            self._target,
            saver=scaffold.saver,
            init_op=scaffold.init_op,
            init_feed_dict=scaffold.init_feed_dict,
            init_fn=scaffold.init_fn,
            **self._session_arguments,
        )
        return cached(session)


class WorkerSessionCreator(tf.compat.v1.train.WorkerSessionCreator):
    """`tf.compat.v1.train.WorkerSessionCreator` whose sessions are `CachedSession`s."""

    def __init__(
        self,
        scaffold: _Scaffold | None = None,
        master: str = "",
        config: tf.compat.v1.ConfigProto | None = None,
        max_wait_secs: int = 1800,
    ) -> None:
        """Takes the arguments of `tf.compat.v1.train.WorkerSessionCreator`."""
        self.scaffold = scaffold or tf.compat.v1.train.Scaffold()
        super().__init__(self.scaffold, master, config, max_wait_secs)
        self._target = master
        self._session_arguments: dict[str, Any] = {"config": config, "max_wait_secs": max_wait_secs}

    def create_session(self) -> tf.compat.v1.Session:
        """Waits until the chief has made the model ready, and returns a new session."""
        manager = _session_manager(self.scaffold.finalize())
        return cached(manager.wait_for_session(self._target, **self._session_arguments))


def _session_manager(scaffold: _Scaffold, restorer: WarmStarter | None = None) -> SessionManager:
    """Returns a manager of the sessions of a finalized scaffold in the default graph."""
    return SessionManager(
        local_init_op=scaffold.local_init_op,
        ready_op=scaffold.ready_op,
        ready_for_local_init_op=scaffold.ready_for_local_init_op,
        graph=tf.compat.v1.get_default_graph(),
        local_init_feed_dict=scaffold.local_init_feed_dict,
        restorer=restorer,
    )


class _CachingSessionCreator(tf.compat.v1.train.SessionCreator):
    """Makes `CachedSession`s of the plain sessions of any other creator."""

    def __init__(self, creator: tf.compat.v1.train.SessionCreator) -> None:
        self._creator = creator

    def create_session(self) -> tf.compat.v1.Session:
        return cached(self._creator.create_session())


class MonitoredSession(tf.compat.v1.train.MonitoredSession):
    """`tf.compat.v1.train.MonitoredSession` over a `CachedSession`.

    The default creator is `runner.ChiefSessionCreator`; under TensorFlow's distribute coordinator,
    it is the coordinator's.
    """

    def __init__(
        self,
        session_creator: tf.compat.v1.train.SessionCreator | None = None,
        hooks: Sequence[_Hook] | None = None,
        stop_grace_period_secs: int = 120,
    ) -> None:
        context = worker_context()
        if session_creator is None:
            session_creator = context.session_creator() if context else ChiefSessionCreator()
        super().__init__(_CachingSessionCreator(session_creator), hooks, stop_grace_period_secs)


class SingularMonitoredSession(tf.compat.v1.train.SingularMonitoredSession):
    """`tf.compat.v1.train.SingularMonitoredSession` that may start from several checkpoints."""

    def __init__(
        self,
        hooks: Sequence[_Hook] | None = None,
        scaffold: _Scaffold | None = None,
        master: str = "",
        config: tf.compat.v1.ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        stop_grace_period_secs: int = 120,
        checkpoint_filename_with_path: str | None = None,
        *,
        pretrained_checkpoint_dirs: Directories | None = None,
        pretrained_scaffolds: Scaffolds | None = None,
    ) -> None:
        """Takes TensorFlow's arguments and, of one length, the sources of a warm start.

        Raises:
          ConfigError: when the lists differ in length.
        """
        creator = ChiefSessionCreator(
            scaffold,
            master,
            config,
            checkpoint_dir,
            checkpoint_filename_with_path,
            pretrained_checkpoint_dirs=pretrained_checkpoint_dirs,
            pretrained_scaffolds=pretrained_scaffolds,
        )
        init_singular_session(self, creator, hooks, stop_grace_period_secs)


# The beginnings of the arguments that TensorFlow's function does not have.
_OURS = ("model_", "pretrained_")


def MonitoredTrainingSession(  # noqa: N802 (TensorFlow's name)
    master: str = "",
    is_chief: bool = True,
    checkpoint_dir: str | None = None,
    scaffold: _Scaffold | None = None,
    hooks: Sequence[_Hook] | None = None,
    chief_only_hooks: Sequence[_Hook] | None = None,
    save_checkpoint_secs: int | None = _USE_DEFAULT,
    save_summaries_steps: int | None = _USE_DEFAULT,
    save_summaries_secs: int | None = _USE_DEFAULT,
    config: tf.compat.v1.ConfigProto | None = None,
    stop_grace_period_secs: int = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: int = 7200,
    save_checkpoint_steps: int | None = _USE_DEFAULT,
    summary_dir: str | None = None,
    save_graph_def: bool = True,
    *,
    model_checkpoint_dir: str | None = None,
    model_scaffold: _Scaffold | None = None,
    pretrained_checkpoint_dirs: Directories | None = None,
    pretrained_scaffolds: Scaffolds | None = None,
) -> tf.compat.v1.train.MonitoredSession:
    """Creates a `runner.MonitoredSession` that may start from several checkpoints.

    Everything but the last four arguments has the meaning and default it has in
    `tf.compat.v1.train.MonitoredTrainingSession`. When there is a checkpoint in `checkpoint_dir`,
    all of it is restored and the pretrained sources are not read.

    Args:
      master: the TensorFlow master.
      is_chief: whether this process initializes, restores and saves.
      checkpoint_dir: the directory of the model's checkpoints; None, the default, saves none.
      scaffold: the model's scaffold.
      hooks: hooks of every process.
      chief_only_hooks: hooks of the chief.
      save_checkpoint_secs: seconds between checkpoints, by default 600; None saves none.
      save_summaries_steps: steps between summaries, by default 100; None writes none.
      save_summaries_secs: seconds between summaries, instead of steps.
      config: the session's configuration.
      stop_grace_period_secs: seconds that threads have to stop.
      log_step_count_steps: steps between logs of the step rate; None logs none.
      max_wait_secs: seconds that a worker waits for the chief.
      save_checkpoint_steps: steps between checkpoints, instead of seconds.
      summary_dir: the directory of summaries, by default `checkpoint_dir`.
      save_graph_def: whether to save the graph beside the checkpoints.
      model_checkpoint_dir: another name for `checkpoint_dir`, beside the pretrained ones.
      model_scaffold: another name for `scaffold`.
      pretrained_checkpoint_dirs: for each pretrained scaffold the directory or prefix of its
        checkpoint, or None to keep the initial values of its variables. One path is a list of one.
      pretrained_scaffolds: scaffolds whose savers restore just their subset of the variables, or
        one of them.

    Raises:
      ConfigError: when the two lists differ in length, both names of an argument are given, or a
        warm start is asked for under TensorFlow's distribute coordinator, which creates the
        sessions itself.
    """
    arguments = locals()
    aliases = {
        "checkpoint_dir": (checkpoint_dir, model_checkpoint_dir),
        "scaffold": (scaffold, model_scaffold),
    }
    for name, pair in aliases.items():
        if None not in pair:
            raise ConfigError.of(
                f"{name} and model_{name} are given", "they are one argument", "give one"
            )
    checkpoint_dir = model_checkpoint_dir or checkpoint_dir
    scaffold = model_scaffold or scaffold or tf.compat.v1.train.Scaffold()
    if worker_context():
        if pretrained_checkpoint_dirs or pretrained_scaffolds:
            raise ConfigError.of(
                "a warm start is asked for under TensorFlow's distribute coordinator",
                "the coordinator creates the sessions, which restore one checkpoint or none",
                "start without the coordinator from the pretrained checkpoints, save, and give it "
                "that checkpoint",
            )
        # It decides which tasks save checkpoints and write summaries, and where.
        shared = {name: value for name, value in arguments.items() if not name.startswith(_OURS)}
        shared |= {"checkpoint_dir": checkpoint_dir, "scaffold": scaffold}
        return tf.compat.v1.train.MonitoredTrainingSession(**shared)
    if not is_chief:
        worker = WorkerSessionCreator(scaffold, master, config, max_wait_secs)
        return MonitoredSession(worker, hooks, stop_grace_period_secs)
    creator = ChiefSessionCreator(
        scaffold,
        master,
        config,
        checkpoint_dir,
        pretrained_checkpoint_dirs=pretrained_checkpoint_dirs,
        pretrained_scaffolds=pretrained_scaffolds,
    )
    stock = _stock_hooks(
        scaffold,
        checkpoint_dir,
        summary_dir or checkpoint_dir,
        log_every=log_step_count_steps,
        summaries=_interval(save_summaries_steps, save_summaries_secs, (100, None)),
        checkpoints=_interval(save_checkpoint_steps, save_checkpoint_secs, (None, 600)),
        save_graph_def=save_graph_def,
    )
    all_hooks = [*(chief_only_hooks or ()), *stock, *(hooks or ())]
    return MonitoredSession(creator, all_hooks, stop_grace_period_secs)


_Interval: TypeAlias = tuple[int | None, int | None]


def _stock_hooks(
    scaffold: _Scaffold,
    checkpoint_dir: str | None,
    summary_dir: str | None,
    *,
    log_every: int | None,
    summaries: _Interval,
    checkpoints: _Interval,
    save_graph_def: bool,
) -> Iterator[_Hook]:
    """Yields the hooks of TensorFlow's chief, in its order; an interval is (steps, seconds)."""
    if summary_dir and log_every and log_every > 0:
        yield tf.compat.v1.train.StepCounterHook(log_every, output_dir=summary_dir)
    steps, secs = summaries
    if summary_dir and max(steps or 0, secs or 0) > 0:
        yield tf.compat.v1.train.SummarySaverHook(steps, secs, summary_dir, scaffold=scaffold)
    steps, secs = checkpoints
    if checkpoint_dir and max(steps or 0, secs or 0) > 0:
        yield tf.compat.v1.train.CheckpointSaverHook(
            checkpoint_dir, secs, steps, scaffold=scaffold, save_graph_def=save_graph_def
        )


def _interval(steps: int | None, secs: int | None, default: _Interval) -> _Interval:
    """Returns (steps, seconds) as TensorFlow reads them: the default without either argument."""
    if steps is _USE_DEFAULT and secs is _USE_DEFAULT:
        return default
    return None if steps is _USE_DEFAULT else steps, None if secs is _USE_DEFAULT else secs


class Supervisor(SupervisorWithManager):
    """`tf.compat.v1.train.Supervisor` that may start from several checkpoints.

    When `logdir` holds no checkpoint of the model, everything is initialized, and then each
    scaffold's variables are restored from its checkpoint.
    """

    @with_arguments_of(tf.compat.v1.train.Supervisor.__init__)
    def __init__(
        self,
        *args: Any,
        pretrained_checkpoint_dirs: Directories | None = None,
        pretrained_scaffolds: Scaffolds | None = None,
        **kwargs: Any,
    ) -> None:
        """Takes the arguments of `tf.compat.v1.train.Supervisor`, and the sources of a warm start.

        The sources are as for `MonitoredTrainingSession`.

        Raises:
          ConfigError: when the two lists differ in length, or are given beside a session manager.
        """
        self._pretrained = PretrainedScaffolds(pretrained_checkpoint_dirs, pretrained_scaffolds)
        super().__init__(*args, **kwargs)

    def prepare_or_wait_for_session(self, *args: Any, **kwargs: Any) -> tf.compat.v1.Session:
        """Returns the session of TensorFlow's method as a `CachedSession`."""
        return cached(super().prepare_or_wait_for_session(*args, **kwargs))

    def choose_session_manager(self, manager: Any, **arguments: Any) -> Any:
        """Returns the manager, or without one a manager that restores the pretrained scaffolds."""
        if manager is None:
            with arguments["graph"].as_default():
                self._pretrained.build()
            return SessionManager(restorer=self._pretrained, **arguments)
        if self._pretrained:
            raise ConfigError.of(
                "a session manager and pretrained scaffolds are given",
                "it is the manager that restores",
                "give them to it: SessionManager(checkpoint_dirs=..., scaffolds=...)",
            )
        return manager
