"""Trains one run: opens the session and runs the loop."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from runner.cluster.chief import Chief, chief_of
from runner.cluster.resuming import resuming_saver
from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.graph.experiment import BuiltGraph, Training
from runner.graph.input_pipeline import input_ended
from runner.graph.resumability import not_resumed_exactly
from runner.restoration.plan import RestorationPlan
from runner.restoration.restorer import Restorer
from runner.runs.run_directory import RunDirectory
from runner.session.monitored_session import ChiefSessionCreator, MonitoredSession
from runner.system.signals import Interruption
from runner.tracking import Tracker
from runner.training.context import RunContext
from runner.training.loop_hooks import loop_hooks
from runner.training.recording import recorded


def train_run(
    context: RunContext,
    built: BuiltGraph,
    plan: RestorationPlan | None,
    directory: RunDirectory,
    interruption: Interruption,
) -> float:
    """Trains to the last step and returns the best objective.

    Args:
      context: what the command gave.
      built: the graph, not finalised.
      plan: where variables come from; None for a run that resumes from its own checkpoint.
      directory: the run's directory, claimed; it is released at the end.
      interruption: tells of signals.

    Raises:
      InterruptedRunError: after a signal; the last step is saved.
      PrunedRunError: when the trial is pruned; the last step is saved.
      SweepError: when the trial's objective is NaN.
      NonFiniteLossError: when the loss is NaN or infinite.
      ConfigError: when the training data end, an evaluated split is empty, or a hook does not fit.
    """
    with recorded(context, built, plan, directory, interruption) as tracker:
        restorer = _restorer(context, built, plan) if plan is not None else None
        best = _loop(context, built, restorer, directory, tracker, interruption)
        interruption.check()
        if context.trial is not None:
            context.trial.check()
            context.trial.judge(best)
    context.screen.line(f"results: {tracker.location()}")
    context.screen.line(f"files:   {directory.path}")
    if context.store.open_command():
        context.screen.line(f"open:    {context.store.open_command()}")
    interruption.check()  # A signal while the run was closed still ends a sweep.
    return best


def _restorer(context: RunContext, built: BuiltGraph, plan: RestorationPlan) -> Restorer:
    settings = context.config.restoration
    return Restorer(
        plan,
        built.variables,
        context.sources.open,
        initialize=settings.initialize,
        verify=settings.verify,
    )


def _loop(
    context: RunContext,
    built: BuiltGraph,
    restorer: Restorer | None,
    directory: RunDirectory,
    tracker: Tracker,
    interruption: Interruption,
) -> float:
    config, training = context.config, built.training
    if training is None:
        raise ValueError("the graph was built without a training step")
    leader = chief_of(config, interruption)
    record = directory.require()
    if leader is not None and record.trained:
        # It died when it had let go of the servers, without which it could not even look.
        with interruption.deferred():
            leader.release(context.screen.line)
        return _number(record.objective)
    with built.graph.as_default():
        saver = resuming_saver(built, config.cluster, directory.checkpoints, context.screen.line)
        creator = _session_creator(context, built, saver, restorer, directory, leader)
        hooks = loop_hooks(context, built, training, directory, tracker, interruption, leader)
        for line in not_resumed_exactly(training.train_op):
            context.screen.line(line)
        try:
            with (
                interruption.deferred(),
                leader.leading(context.screen.line) if leader else nullcontext(),
            ):
                with MonitoredSession(creator, hooks.all) as session:
                    _train(session, training, config)
                reached = hooks.best.best()
                goes_on = interruption.received() or (context.trial and context.trial.pruned)
                directory.update(objective=reached, trained=leader is not None and not goes_on)
        finally:
            hooks.progress.close()
    return _number(reached)


def _train(session: MonitoredSession, training: Training, config: RunConfig) -> None:
    while not session.should_stop():
        try:
            session.run(training.train_op)
        except tf.errors.OutOfRangeError as error:
            # MonitoredSession would take it for an orderly end.
            raise ConfigError(input_ended(config)) from error


def _number(objective: float | None) -> float:
    return float("nan") if objective is None else objective


def _session_creator(
    context: RunContext,
    built: BuiltGraph,
    saver: tf.compat.v1.train.Saver,
    restorer: Restorer | None,
    directory: RunDirectory,
    leader: Chief | None,
) -> ChiefSessionCreator:
    config = context.config
    if restorer is None:
        initializers = [tf.compat.v1.global_variables_initializer()]
    else:
        others = [built.training.input_initializer] if built.training is not None else []
        restorer.build(others)
        initializers = []  # The session manager lets the restorer initialise.
    local_initializers = [tf.compat.v1.train.Scaffold.default_local_init_op()]
    if built.training is not None:
        # Local initialisers run in every new session, the others only where nothing is resumed.
        starts = initializers if built.training.input_is_saved else local_initializers
        starts.append(built.training.input_initializer)
    arguments: dict[str, Any] = {
        "scaffold": tf.compat.v1.train.Scaffold(
            init_op=tf.group(*initializers),
            local_init_op=tf.group(*local_initializers),
            saver=saver,
        ),
        "checkpoint_dir": str(directory.checkpoints),
        "restorer": restorer,
    }
    if leader is not None:
        return leader.session_creator(directory.path, say=context.screen.line, **arguments)
    return ChiefSessionCreator(
        config=tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=config.session.intra_op_threads,
            inter_op_parallelism_threads=config.session.inter_op_threads,
        ),
        **arguments,
    )
