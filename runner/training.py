"""Trains one run: opens the session, runs the loop, and records how it truly ended."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tensorflow as tf
from omegaconf import OmegaConf

from runner.checkpoints.provenance_file import provenance_of
from runner.cluster.chief import Chief, chief
from runner.config import NonFinite, RunConfig
from runner.errors import ConfigError, InterruptedRunError, NonFiniteLossError, Problem
from runner.experiment import BuiltGraph
from runner.graph_names import finder, graph_names
from runner.hook_targets import build_hook
from runner.hooks import (
    BestCheckpoint,
    CheckpointHook,
    EvaluationHook,
    FiniteCheck,
    InputStateHook,
    MetricsHook,
    NanLossHook,
    ProgressHook,
    RewindHook,
    StopAtStepHook,
    StopWhenHook,
)
from runner.hooks.checkpoint import another_saver, non_finite_problem
from runner.interruption import Interruption
from runner.lineage import DIGEST, SOURCE_TAG, source_run_tags
from runner.references import References
from runner.restoration.html_report import html
from runner.restoration.json_report import json_text
from runner.restoration.plan import RestorationPlan
from runner.restoration.provenance import document
from runner.restoration.report import text
from runner.restoration.restorer import Restorer
from runner.run_directory import PROVENANCE, RunDirectory
from runner.screen import Screen
from runner.session.monitored_session import MonitoredSession
from runner.session.session_creators import ChiefSessionCreator
from runner.sources import FINGERPRINT_TAG, Sources
from runner.tracking import (
    RUN_DIR_TAG,
    Mask,
    RunStatus,
    RunStore,
    Tracker,
    environment_tags,
    flatten,
)


def train_run(
    config: RunConfig,
    built: BuiltGraph,
    plan: RestorationPlan | None,
    sources: Sources,
    directory: RunDirectory,
    store: RunStore,
    overrides: Sequence[str],
    screen: Screen,
    interruption: Interruption,
    parent: str | None = None,
) -> float:
    """Trains to the last step and returns the best objective.

    Args:
      config: the run's configuration.
      built: its graph, not finalised.
      plan: where variables come from; None for a run that resumes from its own checkpoint.
      sources: the checkpoints that the plan takes values from.
      directory: the run's directory, claimed; it is released at the end.
      store: where to record.
      overrides: the command line's overrides.
      screen: where to print.
      interruption: tells of signals.
      parent: id of the tracked run that this one is a part of.

    Raises:
      InterruptedRunError: after a signal; the last step is saved.
      NonFiniteLossError: when the loss is NaN or infinite.
      ConfigError: when the training data end, an evaluated split is empty, or a hook does not fit.
    """
    status = RunStatus.FAILED
    mask = Mask(config.tracking.mask, asdict(config))
    tracker: Tracker | None = None
    try:
        with interruption.deferred():  # A run that a signal left unknown would stay RUNNING.
            tracker = _open_tracker(config, directory, store, overrides, parent)
        interruption.check()
        _record_start(config, directory, tracker, overrides, mask)
        restorer = None
        if plan is not None:
            _record_plan(config, plan, sources, directory, store, tracker)
            restorer = Restorer(
                plan,
                built.variables,
                sources.open,
                initialize=config.restoration.initialize,
                verify=config.restoration.verify,
            )
        best = _loop(config, built, restorer, directory, tracker, screen, interruption)
        interruption.check()
        status = RunStatus.FINISHED
    except InterruptedRunError:
        status = RunStatus.KILLED
        raise
    except BaseException as error:
        if tracker is not None:
            tracker.set_tags({"runner.exception": f"{type(error).__name__}: {error}"[:5000]})
            tracker.log_text(traceback.format_exc(), "traceback.txt")
        raise
    finally:
        with interruption.deferred():
            try:
                if tracker is not None:
                    _name_tracked_run(directory, store)
                    _record_end(directory, tracker)
                    tracker.close(status)
                    _name_tracked_run(directory, store)
                # Last: a run whose end was cut short still says RUNNING, and the next one of its
                # experiment settles it, in the store too.
                directory.update(status=status.value)
            finally:
                directory.release()
    screen.line(f"results: {tracker.location()}")
    screen.line(f"files:   {directory.path}")
    if store.open_command():
        screen.line(f"open:    {store.open_command()}")
    interruption.check()  # A signal while the run was closed still ends a sweep.
    return best


def _open_tracker(
    config: RunConfig,
    directory: RunDirectory,
    store: RunStore,
    overrides: Sequence[str],
    parent: str | None,
) -> Tracker:
    record = directory.require()
    tags = {
        FINGERPRINT_TAG: record.fingerprint,
        RUN_DIR_TAG: str(directory.path.resolve()),
        "runner.overrides": " ".join(overrides),
        **environment_tags(Path.cwd()),
    }
    name = f"{config.name} {directory.path.name}"
    return store.open(directory.path, config.name, name, tags, parent)


def _record_start(
    config: RunConfig,
    directory: RunDirectory,
    tracker: Tracker,
    overrides: Sequence[str],
    mask: Mask,
) -> None:
    plain = mask.settings(asdict(config))
    directory.config.write_text(OmegaConf.to_yaml(OmegaConf.create(plain)))
    shown = [mask.text(each) for each in overrides]
    directory.overrides.write_text(OmegaConf.to_yaml(OmegaConf.create(shown)))
    tracker.log_parameters(flatten(plain))
    data = json.dumps(plain["data"], sort_keys=True, default=str)
    tracker.log_dataset(
        str(config.data["_target_"]),
        hashlib.sha256(data.encode()).hexdigest()[:16],
        "train",
        data,
        {key: value for key, value in plain["data"].items() if key.endswith("_size")},
    )
    tracker.log_artifact(directory.config)
    tracker.log_artifact(directory.overrides)


def _record_plan(
    config: RunConfig,
    plan: RestorationPlan,
    sources: Sources,
    directory: RunDirectory,
    store: RunStore,
    tracker: Tracker,
) -> None:
    """Keeps the plan, and beside the checkpoints to come where their variables came from."""
    directory.plan.write_text(text(plan))
    directory.plan_json.write_text(json_text(plan))
    directory.plan_html.write_text(html(plan, f"{config.name}: restoration plan"))
    run = {
        "experiment": config.name,
        "run_dir": str(directory.path.resolve()),
        "tracking_uri": store.store or None,
        "run_id": store.run_id(directory.path),
    }
    provenance = json.dumps(document(plan, run, sources.origins()), indent=1) + "\n"
    for file in directory.provenances:
        file.parent.mkdir(exist_ok=True)
        file.write_text(provenance)
    for file in (
        directory.plan,
        directory.plan_json,
        directory.plan_html,
        directory.provenances[0],
    ):
        tracker.log_artifact(file)
    found = {name: each for name, each in plan.sources.items() if each is not None}
    paths = {name: each.path for name, each in found.items()}
    directory.update(sources={name: _absolute(path) for name, path in paths.items()})
    tracker.set_tags({f"{SOURCE_TAG}.{name}": path for name, path in paths.items()})
    tracker.set_tags({f"{SOURCE_TAG}.{name}{DIGEST}": each.digest for name, each in found.items()})
    tracker.set_tags(source_run_tags(paths, store))


def _absolute(path: str) -> str:
    """Returns a path that holds wherever a process is; an address or an average stays as it is."""
    return str(Path(path).absolute()) if Path(path).parent.exists() else path


def _name_tracked_run(directory: RunDirectory, store: RunStore) -> None:
    """Adds the store's name of the run, known only once that is delivered, to the provenance."""
    run_id = store.run_id(directory.path)
    for file in directory.provenances if run_id is not None else ():
        found = provenance_of(str(file.parent))
        if found is not None and found["run"].get("run_id") is None:
            found["run"]["run_id"] = run_id
            file.write_text(json.dumps(found, indent=1) + "\n")


def _record_end(directory: RunDirectory, tracker: Tracker) -> None:
    """Keeps the final and the best checkpoint with the run."""
    final = tf.train.latest_checkpoint(str(directory.checkpoints))
    for file in sorted(Path(final).parent.glob(f"{Path(final).name}.*")) if final else ():
        tracker.log_artifact(file, "checkpoints")
    beside = directory.checkpoints / PROVENANCE
    if final and beside.is_file():
        tracker.log_artifact(beside, "checkpoints")
    if directory.best_record.is_file():
        tracker.log_artifact(directory.best)


def _loop(
    config: RunConfig,
    built: BuiltGraph,
    restorer: Restorer | None,
    directory: RunDirectory,
    tracker: Tracker,
    screen: Screen,
    interruption: Interruption,
) -> float:
    training = built.training
    if training is None:
        raise ValueError("the graph was built without a training step")
    with built.graph.as_default():
        finite = FiniteCheck(built.variables)
        best = BestCheckpoint(
            built.saver,
            directory.best,
            directory.best_record,
            config.train.objective.removeprefix("validation/"),
            config.train.goal,
            finite,
        )
        progress = ProgressHook(training.step, config.train.steps, screen)

        def record_training(values: Mapping[str, float], step: int) -> None:
            tracker.log_metrics({f"train/{name}": value for name, value in values.items()}, step)
            progress.show({name: values[name] for name in training.values}, step)

        def record_evaluation(
            session: tf.compat.v1.Session, values: Mapping[str, float], step: int
        ) -> None:
            tracker.log_metrics(
                {f"validation/{name}": value for name, value in values.items()}, step
            )
            mark = "  (best so far)" if best.offer(session, values, step) else ""
            shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            screen.line(f"step {step}  validation  {shown}{mark}")

        def refuse(names: Sequence[str], step: int) -> None:
            problem = non_finite_problem(names, step)
            if config.train.non_finite.action is NonFinite["raise"]:
                raise NonFiniteLossError(problem)
            screen.line(str(problem))

        names = graph_names(built.variables, training)
        evaluation = EvaluationHook(
            built.split,
            training.step,
            config.train.evaluate_every,
            record_evaluation,
            at_end=lambda: not interruption.received(),
            averages=training.averages if config.train.evaluate_ema else None,
        )
        crew = chief(config)
        creator = _session_creator(config, built, restorer, directory, crew)
        first, last = (
            crew.hooks(training, tracker.log_metrics, interruption.received, screen.line)
            if crew
            else ([], [])
        )
        references = References(
            {"graph": names, "run": _run_names(built, directory, tracker, evaluation)},
            finder(built.graph),
        )
        hooks = [
            *first,
            # First, so that nothing is recorded or saved of a step whose loss is NaN.
            NanLossHook(
                training.values["loss"],
                training.step,
                directory.checkpoints,
                "look at the data and the learning rate, for example with half of it: "
                f"optimizer.learning_rate={_half_rate(config)}",
                config.train.non_finite.action,
                config.train.non_finite.rollbacks,
                training.learning_rate_scale,
                config.train.non_finite.learning_rate_scale,
                screen.line,
            ),
            *(
                [InputStateHook(training.input_state, screen.line)]
                if training.input_is_saved
                else []
            ),
            StopAtStepHook(config.train.steps),
            RewindHook(tracker.rewind),
            MetricsHook(names["metrics"], training.step, config.train.log_every, record_training),
            evaluation,
            CheckpointHook(
                built.saver,
                directory.checkpoints,
                training.step,
                config.train.checkpoint_every,
                finite,
                refuse,
            ),
            progress,
            *(
                built.hooks[name] or build_hook(name, node, references)
                for name, node in config.hooks.items()
            ),
            *last,
            # Last, so that a signal during the other hooks' work costs no further step.
            StopWhenHook(interruption.received),
        ]
        try:
            with (
                interruption.deferred(),
                crew.leading(interruption.received) if crew else nullcontext(),
                MonitoredSession(creator, hooks) as session,
            ):
                while not session.should_stop():
                    try:
                        session.run(training.train_op)
                    except tf.errors.OutOfRangeError as error:
                        # MonitoredSession would take it for an orderly end.
                        raise ConfigError(_input_ended(config)) from error
        finally:
            progress.close()
    reached = best.best()
    directory.update(objective=reached)
    return float("nan") if reached is None else reached


def _run_names(
    built: BuiltGraph, directory: RunDirectory, tracker: Tracker, evaluation: EvaluationHook
) -> dict[str, Any]:
    """Returns what `${run:NAME}` stands for, for each of `runner.hook_targets.RUN_NAMES`."""
    return {
        "directory": str(directory.path),
        "checkpoints": str(directory.checkpoints),
        "evaluation": evaluation,
        "record": tracker.log_metrics,
        "saver": another_saver(built.saver, 0),
    }


def _session_creator(
    config: RunConfig,
    built: BuiltGraph,
    restorer: Restorer | None,
    directory: RunDirectory,
    crew: Chief | None,
) -> ChiefSessionCreator:
    if restorer is None:
        initializers = [tf.compat.v1.global_variables_initializer()]
    else:
        others = [built.training.input_initializer] if built.training is not None else []
        initializers = [restorer.build(others)]
    local_initializers = [tf.compat.v1.train.Scaffold.default_local_init_op()]
    if built.training is not None:
        # Local initialisers run in every new session, the others only where nothing is resumed.
        starts = initializers if built.training.input_is_saved else local_initializers
        starts.append(built.training.input_initializer)
    arguments: dict[str, Any] = {
        "scaffold": tf.compat.v1.train.Scaffold(
            init_op=tf.group(*initializers),
            local_init_op=tf.group(*local_initializers),
            saver=built.saver,
        ),
        "checkpoint_dir": str(directory.checkpoints),
        "restorer": restorer,
    }
    if crew is not None:
        return crew.session_creator(**arguments)
    return ChiefSessionCreator(
        config=tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=config.session.intra_op_threads,
            inter_op_parallelism_threads=config.session.inter_op_threads,
        ),
        **arguments,
    )


def _input_ended(config: RunConfig) -> Problem:
    return Problem(
        f"data.train() ended before step {config.train.steps}",
        "the training data must repeat without end",
        "end its pipeline with .repeat() before .batch(), or lower train.steps",
    )


def _half_rate(config: RunConfig) -> str:
    rate = config.optimizer.get("learning_rate")
    return f"{rate / 2:g}" if isinstance(rate, float) else "..."
