"""The monitored sessions, extended to several scaffolds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

# What `tf.compat.v1.train.MonitoredTrainingSession` asks; no public name leads to it.
from tensorflow.python.distribute import distribute_coordinator_context

from runner.errors import ConfigError, Problem
from runner.session.session_creators import (
    CachingSessionCreator,
    ChiefSessionCreator,
    WorkerSessionCreator,
)

_Scaffold: TypeAlias = tf.compat.v1.train.Scaffold
_Hook: TypeAlias = tf.compat.v1.train.SessionRunHook
# "Not given", told apart from None, which turns the hook off, as TensorFlow's function does.
USE_DEFAULT = object()


class MonitoredSession(tf.compat.v1.train.MonitoredSession):
    """`tf.compat.v1.train.MonitoredSession` over a session that prepares each step once."""

    def __init__(
        self,
        session_creator: tf.compat.v1.train.SessionCreator | None = None,
        hooks: Sequence[_Hook] | None = None,
        stop_grace_period_secs: int = 120,
    ) -> None:
        """Takes TensorFlow's arguments; the default creator is `runner.ChiefSessionCreator`.

        Under TensorFlow's distribute coordinator the default is that coordinator's.
        """
        if session_creator is None and not _is_coordinated():
            session_creator = ChiefSessionCreator()
        creator = CachingSessionCreator(session_creator) if session_creator else None
        super().__init__(creator, hooks, stop_grace_period_secs)


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
        pretrained_checkpoint_dirs: Sequence[str | os.PathLike[str] | None] | None = None,
        pretrained_scaffolds: Sequence[_Scaffold] | None = None,
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
            pretrained_checkpoint_dirs,
            pretrained_scaffolds,
        )
        # TensorFlow's class does nothing but make a creator of its own and call its base so.
        super(tf.compat.v1.train.SingularMonitoredSession, self).__init__(
            creator,
            hooks,
            should_recover=False,
            stop_grace_period_secs=stop_grace_period_secs,
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
    pretrained_checkpoint_dirs: Sequence[str | os.PathLike[str] | None] | None = None,
    pretrained_scaffolds: Sequence[_Scaffold] | None = None,
) -> tf.compat.v1.train.MonitoredSession:
    """Creates a `runner.MonitoredSession` that may start from several checkpoints.

    Everything but the last four arguments has the meaning and default it has in
    `tf.compat.v1.train.MonitoredTrainingSession`. Under TensorFlow's distribute coordinator, which
    decides itself who initialises and saves, that function makes the session.

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
      ConfigError: when the two lists differ in length, both names of an argument are given, or a
        warm start is asked for under TensorFlow's distribute coordinator.
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
    if _is_coordinated():
        if pretrained_scaffolds or pretrained_checkpoint_dirs:
            raise ConfigError(
                Problem(
                    "a warm start is asked for under TensorFlow's distribute coordinator",
                    "that makes the sessions itself, and restores one checkpoint or none",
                    "start from a checkpoint of the whole model, made without the coordinator",
                )
            )
        timings = {
            "save_checkpoint_secs": save_checkpoint_secs,
            "save_checkpoint_steps": save_checkpoint_steps,
            "save_summaries_secs": save_summaries_secs,
            "save_summaries_steps": save_summaries_steps,
        }
        return tf.compat.v1.train.MonitoredTrainingSession(
            master,
            is_chief,
            checkpoint_dir,
            scaffold,
            hooks,
            chief_only_hooks,
            config=config,
            stop_grace_period_secs=stop_grace_period_secs,
            log_step_count_steps=log_step_count_steps,
            max_wait_secs=max_wait_secs,
            summary_dir=summary_dir,
            save_graph_def=save_graph_def,
            **{name: each for name, each in timings.items() if each is not USE_DEFAULT},
        )
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
    all_hooks = list(chief_only_hooks or ())
    summary_dir = summary_dir or checkpoint_dir
    summary_steps, summary_secs = _timing(save_summaries_steps, save_summaries_secs, steps=100)
    if summary_dir and _positive(log_step_count_steps):
        all_hooks.append(
            tf.compat.v1.train.StepCounterHook(log_step_count_steps, output_dir=summary_dir)
        )
    if summary_dir and (_positive(summary_steps) or _positive(summary_secs)):
        all_hooks.append(
            tf.compat.v1.train.SummarySaverHook(
                summary_steps, summary_secs, summary_dir, scaffold=scaffold
            )
        )
    save_steps, save_secs = _timing(save_checkpoint_steps, save_checkpoint_secs, secs=600)
    if checkpoint_dir and (_positive(save_steps) or _positive(save_secs)):
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
    return MonitoredSession(creator, all_hooks, stop_grace_period_secs)


def _is_coordinated() -> bool:
    return distribute_coordinator_context.get_current_worker_context() is not None


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


def _positive(interval: float | None) -> bool:
    return interval is not None and interval > 0
