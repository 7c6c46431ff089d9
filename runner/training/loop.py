"""Trains one run: opens the session and runs the loop."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import tensorflow as tf

from runner.checkpoints import contents
from runner.config.cluster_spec import is_cluster
from runner.errors import ConfigError, InterruptedRunError
from runner.graph.graph_spec import local_init_op
from runner.graph.input_pipeline import InputState, not_resumed_exactly
from runner.graph.session_variables import PartialSaver, saved_as
from runner.hooks import ProgressHook
from runner.session.monitored_session import ChiefSessionCreator, MonitoredSession
from runner.system.user_code import raised
from runner.training.experiment import OpenedRun
from runner.training.extension import saver_of_extension
from runner.training.loop_hooks import ConfiguredHooks, loop_hooks
from runner.training.recording import (
    interrupted_lines,
    record_first_values,
    recorded,
    result_lines,
)


def train_run(run: OpenedRun, configured: ConfiguredHooks) -> float:
    """Trains to the last step and returns the best objective.

    Args:
      run: the run, opened; its directory is released at the end.
      configured: the hooks of its configuration.

    Raises:
      InterruptedRunError: after a signal during the training; the last step is saved.
      PrunedRunError: when the trial is pruned; the last step is saved.
      SweepError: when the trial's objective is NaN.
      NonFiniteLossError: when the loss is NaN or infinite.
      ConfigError: when the training data end, or an evaluated split is empty.
      UserCodeError: when the experiment's code raises an error.
    """
    try:
        with recorded(run):
            best = _loop(run, configured)
            run.interruption.check()
            run.watch.check(best)
    except InterruptedRunError:
        for line in interrupted_lines(run):
            run.screen.line(line)
        raise
    for line in (*configured.final.lines(), *result_lines(run)):
        run.screen.line(line)
    return best


def _loop(run: OpenedRun, configured: ConfiguredHooks) -> float:
    training = run.training
    if run.coordinator.is_trained(run):
        return _number(run.directory.load_record().objective)
    with run.built.graph.as_default():
        creator = _session_creator(run)
        progress = ProgressHook(training.step, run.config.train.steps, run.screen)
        hooks = loop_hooks(run, configured, progress)
        for line in not_resumed_exactly(training.train_op):
            run.screen.line(line)
        with (
            closing(progress),
            run.built.explaining(),
            configured.explaining(),
            run.interruption.deferred(),
            run.coordinator.session_scope(run),
        ):
            with (
                _model_freed(run, configured),
                MonitoredSession(creator, hooks) as session,
                _handed_over(session, configured),
            ):
                _train(session, run, configured)
            reached = configured.best.best()
            resumes_later = run.interruption.received() or run.watch.pruned
            if not resumes_later:
                _report_early_end(run, configured.stopper())
            run.directory.update(objective=reached, trained=not resumes_later)
    return _number(reached)


@contextmanager
def _model_freed(run: OpenedRun, configured: ConfiguredHooks) -> Iterator[None]:
    """Moves the values outside the session into a file, unless other tasks need them.

    A session initialises itself from there: the values of both would need twice the memory.
    """
    model = run.built.model
    needed = is_cluster(run.config.cluster)
    with tempfile.TemporaryFile(dir=run.directory.path) as file:
        try:
            if model is not None and not needed:
                model.free(file)
            yield
        except BaseException:
            if configured.final.in_model and model is not None:
                model.give_back()
            raise


@contextmanager
def _handed_over(session: MonitoredSession, configured: ConfiguredHooks) -> Iterator[None]:
    """Gives a model that was handed over the session's values where the block fails."""
    try:
        yield
    except BaseException:
        final = configured.final
        if final.in_model:
            with suppress(tf.errors.OpError, RuntimeError):  # The session may be what has failed.
                session.run_step_fn(lambda step_context: final.hand_over(step_context.session))
        raise


def _report_early_end(run: OpenedRun, stopper: str | None) -> None:
    last = max(contents.steps(str(run.directory.checkpoints)), default=0)
    if 0 < last < run.config.train.steps:
        reason = f"{stopper} stopped it" if stopper else "a hook stopped it"
        run.screen.line(f"ended at step {last} of {run.config.train.steps}: {reason}")


def _train(session: MonitoredSession, run: OpenedRun, configured: ConfiguredHooks) -> None:
    is_first = run.plan is not None
    while not session.should_stop():
        try:
            run.training.run_step(session)
            is_first = False
        except (tf.errors.OutOfRangeError, StopIteration) as error:
            # MonitoredSession would take either for an orderly end.
            place = configured.place_of(error)
            if place is not None:
                raise raised(place, error) from error
            if isinstance(error, StopIteration):
                raise
            if is_first:
                raise ConfigError.of(
                    "the training data are empty",
                    f"{run.training.input_name} ended before its first batch",
                    "look for a path without files, a filter or a split that leaves nothing, or"
                    " fewer examples than a batch of drop_remainder=True needs",
                ) from error
            raise ConfigError(run.training.input_ended(run.config.train.steps)) from error


def _number(objective: float | None) -> float:
    return float("nan") if objective is None else objective


def _session_creator(run: OpenedRun) -> ChiefSessionCreator:
    training, built = run.training, run.built
    user_init, source = built.scaffold.init_op, training.input_initializer
    initializers = [] if user_init is None else [user_init]
    # Local initialisers run in every new session, the others only where nothing is resumed.
    initializers += [source] if training.saved_input else []
    in_each_session = [] if training.saved_input else [source]
    restorer = None
    if run.plan is None:
        initializers.insert(0, tf.compat.v1.global_variables_initializer())
    else:  # It initialises the variables.
        on_restored = partial(record_first_values, run)
        restorer = run.experiment.restorer(built, run.plan, on_restored=on_restored)
    ready = _ready_op() if built.scaffold.ready_op is None else None
    scaffold = tf.compat.v1.train.Scaffold(
        init_op=tf.group(*initializers),
        local_init_op=local_init_op(built.scaffold, *in_each_session),
        ready_op=ready,
        ready_for_local_init_op=ready,
        saver=_saver(run),
        copy_from_scaffold=built.scaffold,
    )
    return run.coordinator.session_creator(
        run, scaffold=scaffold, checkpoint_dir=str(run.directory.checkpoints), restorer=restorer
    )


def _ready_op() -> tf.Tensor:
    """Returns the names of global variables without a value.

    TensorFlow's default reports them before the local initialisation, and once more with the local
    variables, which then have values. Two such operations take 2 s of processor time for ResNet-50
    with Adam, one 1 s; its selection of the names alone is 30 operations, this one's is 5.
    """
    variables = tf.compat.v1.global_variables()
    with tf.name_scope("uninitialized_variables"):
        # Without a device: TensorFlow places them with their variables, and would move these.
        initialized = [tf.compat.v1.is_variable_initialized(variable) for variable in variables]
        with tf.device("/cpu:0"):
            missing = tf.squeeze(tf.where(tf.logical_not(tf.stack(initialized))), [1])
            return tf.gather([variable.op.name for variable in variables], missing)


def _saver(run: OpenedRun) -> tf.compat.v1.train.Saver:
    """Returns the saver of the run's checkpoints.

    Where the newest one has no position that the training input can be set to, because another
    number of workers saved it, the saver restores everything else and the input starts over.
    """
    built, training = run.built, run.training
    newest = tf.train.latest_checkpoint(str(run.directory.checkpoints))
    position = training.saved_input
    if newest is not None and (saver := saver_of_extension(run, newest)) is not None:
        return saver
    if position is None or newest is None or _has_position(newest, position):
        return built.saver
    run.screen.line(
        f"input: begins with its first batch: {Path(newest).name} is of another number of workers, "
        "and batches are dealt out again"
    )
    with run.coordinator.replica.scope():
        return PartialSaver(
            saved_as(built.variables),
            training.input_initializer,
            whole=built.saver,
            lacks=lambda prefix: not _has_position(prefix, position),
        )


def _has_position(checkpoint: str, position: InputState) -> bool:
    names = tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map()
    return position.saved_as in names
