"""MonitoredTrainingSession and its session creator, extended to several scaffolds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

from runner.errors import ConfigError, Problem
from runner.session.session_manager import SessionManager, build_savers, pair_sources

if TYPE_CHECKING:  # A session without a restorer needs nothing of what planning imports.
    from runner.restoration.restorer import Restorer

_Scaffold: TypeAlias = tf.compat.v1.train.Scaffold
_Hook: TypeAlias = tf.compat.v1.train.SessionRunHook
# "Not given", told apart from None, which turns the hook off, as TensorFlow's function does.
USE_DEFAULT = object()


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
        pretrained_checkpoint_dirs: Sequence[str | None] | None = None,
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
        return manager.prepare_session(
            saver=scaffold.saver,
            init_op=scaffold.init_op,
            init_feed_dict=scaffold.init_feed_dict,
            init_fn=scaffold.init_fn,
            **self._prepare,
        )


def MonitoredTrainingSession(  # noqa: N802 (TensorFlow's name)
    master: str = "",
    is_chief: bool = True,
    checkpoint_dir: str | None = None,
    scaffold: _Scaffold | None = None,
    hooks: Sequence[_Hook] | None = None,
    chief_only_hooks: Sequence[_Hook] | None = None,
    save_checkpoint_secs: Any = USE_DEFAULT,
    save_summaries_steps: Any = USE_DEFAULT,
    save_summaries_secs: Any = USE_DEFAULT,
    config: tf.compat.v1.ConfigProto | None = None,
    stop_grace_period_secs: int = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: int = 7200,
    save_checkpoint_steps: Any = USE_DEFAULT,
    summary_dir: str | None = None,
    save_graph_def: bool = True,
    *,
    model_checkpoint_dir: str | None = None,
    model_scaffold: _Scaffold | None = None,
    pretrained_checkpoint_dirs: Sequence[str | None] | None = None,
    pretrained_scaffolds: Sequence[_Scaffold] | None = None,
) -> tf.compat.v1.train.MonitoredSession:
    """Creates a `tf.compat.v1.train.MonitoredSession` that may start from several checkpoints.

    Everything but the last four arguments has the meaning and default it has in
    `tf.compat.v1.train.MonitoredTrainingSession`.

    Args:
      master: the TensorFlow master.
      is_chief: whether this process initialises, restores and saves.
      checkpoint_dir: the model's own checkpoints; when there is one, all of it is restored and the
        pretrained sources are not read.
      scaffold: the model's scaffold.
      hooks: hooks for every process.
      chief_only_hooks: hooks for the chief.
      save_checkpoint_secs: seconds between checkpoints, 600 when neither is given.
      save_summaries_steps: steps between summaries, 100 when neither is given.
      save_summaries_secs: seconds between summaries.
      config: the session's configuration.
      stop_grace_period_secs: seconds that threads are given to stop.
      log_step_count_steps: steps between logs of the step rate; None logs none.
      max_wait_secs: seconds that a worker waits for the chief.
      save_checkpoint_steps: steps between checkpoints.
      summary_dir: where summaries go; by default `checkpoint_dir`.
      save_graph_def: whether to save the graph beside the checkpoints.
      model_checkpoint_dir: another name for `checkpoint_dir`, beside the pretrained ones.
      model_scaffold: another name for `scaffold`.
      pretrained_checkpoint_dirs: for each pretrained scaffold the directory or prefix of its
        checkpoint, or None to initialise.
      pretrained_scaffolds: scaffolds whose savers restore just their subset of the variables.

    Raises:
      ConfigError: when the two lists differ in length, or both names of an argument are given.
    """
    twice = [
        name
        for name, values in (
            ("checkpoint_dir", (checkpoint_dir, model_checkpoint_dir)),
            ("scaffold", (scaffold, model_scaffold)),
        )
        if None not in values
    ]
    if twice:
        raise ConfigError(
            *(
                Problem(f"{name} and model_{name} are given", "they are one argument", "give one")
                for name in twice
            )
        )
    checkpoint_dir = model_checkpoint_dir or checkpoint_dir
    scaffold = model_scaffold or scaffold or tf.compat.v1.train.Scaffold()
    if not is_chief:
        creator = tf.compat.v1.train.WorkerSessionCreator(scaffold, master, config, max_wait_secs)
        return tf.compat.v1.train.MonitoredSession(creator, hooks, stop_grace_period_secs)
    creator = ChiefSessionCreator(
        scaffold,
        master,
        config,
        checkpoint_dir,
        pretrained_checkpoint_dirs=pretrained_checkpoint_dirs,
        pretrained_scaffolds=pretrained_scaffolds,
    )
    all_hooks = list(chief_only_hooks or ())
    summary_dir = summary_dir or checkpoint_dir
    summary_steps, summary_secs = _timing(save_summaries_steps, save_summaries_secs, steps=100)
    if summary_dir and log_step_count_steps:
        all_hooks.append(
            tf.compat.v1.train.StepCounterHook(log_step_count_steps, output_dir=summary_dir)
        )
    if summary_dir and (summary_steps or summary_secs):
        all_hooks.append(
            tf.compat.v1.train.SummarySaverHook(
                summary_steps, summary_secs, summary_dir, scaffold=scaffold
            )
        )
    save_steps, save_secs = _timing(save_checkpoint_steps, save_checkpoint_secs, secs=600)
    if checkpoint_dir and (save_steps or save_secs):
        all_hooks.append(
            tf.compat.v1.train.CheckpointSaverHook(
                checkpoint_dir,
                save_secs,
                save_steps,
                scaffold=scaffold,
                save_graph_def=save_graph_def,
            )
        )
    all_hooks += hooks or ()
    return tf.compat.v1.train.MonitoredSession(creator, all_hooks, stop_grace_period_secs)


def _timing(
    given_steps: Any, given_secs: Any, steps: int | None = None, secs: int | None = None
) -> tuple[int | None, int | None]:
    """Returns (steps, seconds) as TensorFlow reads them: defaults hold if neither is given."""
    if given_steps is USE_DEFAULT and given_secs is USE_DEFAULT:
        return steps, secs
    return (
        None if given_steps is USE_DEFAULT else given_steps,
        None if given_secs is USE_DEFAULT else given_secs,
    )
