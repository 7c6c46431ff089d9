"""Records a run: what was asked for, where its variables came from, how it truly ended."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import tensorflow as tf
from omegaconf import OmegaConf

from runner.cluster.replica import Replica
from runner.config.masking import Mask, flatten
from runner.errors import InterruptedRunError, PrunedRunError
from runner.graph.experiment import BuiltGraph
from runner.restoration.html_report import html
from runner.restoration.json_report import json_text
from runner.restoration.plan import RestorationPlan
from runner.restoration.provenance import document
from runner.restoration.report import text
from runner.runs.lineage import DIGEST, SOURCE_TAG, name_tracked_run, source_run_tags
from runner.runs.provenance import environment_tags
from runner.runs.run_directory import PROVENANCE, RunDirectory
from runner.sweeps.trial import TAG
from runner.system.atomic_files import write_text
from runner.system.signals import Interruption
from runner.system.status import Status
from runner.tracking import Tracker
from runner.tracking.tracker import RUN_DIR_TAG
from runner.training.context import RunContext
from runner.training.sources import FINGERPRINT_TAG

_environment_of_trials = lru_cache(maxsize=1)(environment_tags)


@contextmanager
def recorded(
    context: RunContext,
    built: BuiltGraph,
    plan: RestorationPlan | None,
    directory: RunDirectory,
    interruption: Interruption,
) -> Iterator[Tracker]:
    """Gives what records the run, and at the block's end says how it ended and lets go of it.

    Args:
      context: what the command gave.
      built: the run's graph.
      plan: where variables come from; None for a run that resumes from its own checkpoint.
      directory: the run's directory, claimed; it is released at the end.
      interruption: tells of signals, which neither opening nor closing lets through.
    """
    status, pruned = Status.FAILED, False
    tracker: Tracker | None = None
    try:
        with interruption.deferred():  # A run that a signal left unknown would stay RUNNING.
            tracker = _open_tracker(context, directory)
        interruption.check()
        _record_start(context, built.sizes, directory, tracker)
        if plan is not None:
            _record_plan(context, built, plan, directory, tracker)
        yield tracker
        status = Status.FINISHED
    except InterruptedRunError:
        status = Status.KILLED
        raise
    except PrunedRunError as error:
        status, pruned = Status.KILLED, True
        if tracker is not None:
            tracker.set_tags({"runner.pruned": str(error)})
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
                    name_tracked_run(directory, context.store)
                    _record_end(directory, tracker)
                    tracker.close(status, interruption.remaining())
                    name_tracked_run(directory, context.store)
                # Last: a run whose end was cut short still says RUNNING, and the next one of its
                # experiment settles it, in the store too.
                directory.update(status=Status.PRUNED if pruned else status)
            finally:
                directory.release()


def _open_tracker(context: RunContext, directory: RunDirectory) -> Tracker:
    record = directory.require()
    # The code of a process is what it was at its first trial, whatever its files have become.
    environment = environment_tags if context.trial is None else _environment_of_trials
    mask = Mask(context.config.tracking.mask, asdict(context.config))
    tags = {
        FINGERPRINT_TAG: record.fingerprint,
        RUN_DIR_TAG: str(directory.path.resolve()),
        "runner.overrides": " ".join(mask.overrides(context.overrides)),
        **environment(Path.cwd()),
    }
    experiment, trial = context.config.name, context.trial
    name = f"{experiment} {directory.path.name}"
    if trial is None:
        return context.store.open(directory.path, experiment, name, tags)
    trial.started(directory.path)
    tracker = context.store.open(directory.path, experiment, name, tags, trial.parent)
    keys = {name: name.removeprefix(f"{TAG}.") for name in trial.tags}
    # Those of a run that is resumed are not taken from above.
    tracker.set_tags({name: str(mask.value(keys[name], tag)) for name, tag in trial.tags.items()})
    return tracker


def _record_start(
    context: RunContext, sizes: Mapping[str, int], directory: RunDirectory, tracker: Tracker
) -> None:
    config = context.config
    mask = Mask(config.tracking.mask, asdict(config))
    plain = mask.settings(asdict(config))
    write_text(directory.config, OmegaConf.to_yaml(OmegaConf.create(plain)), lasting=False)
    shown = mask.overrides(context.overrides)
    write_text(directory.overrides, OmegaConf.to_yaml(OmegaConf.create(shown)), lasting=False)
    tracker.log_parameters(flatten(plain))
    data = json.dumps(plain["data"], sort_keys=True, default=str)
    tracker.log_dataset(
        str(config.data["_target_"]),
        hashlib.sha256(data.encode()).hexdigest()[:16],
        "train",
        data,
        sizes,
    )
    tracker.log_artifact(directory.config)
    tracker.log_artifact(directory.overrides)


def _record_plan(
    context: RunContext,
    built: BuiltGraph,
    plan: RestorationPlan,
    directory: RunDirectory,
    tracker: Tracker,
) -> None:
    """Keeps the plan, and beside the checkpoints to come where their variables came from."""
    name, store = context.config.name, context.store
    placement = Replica(context.config.cluster).placement(built.variables)
    lines = placement.lines(plan, full=False) if placement else []
    devices = placement.devices if placement else None
    page = html(plan, f"{name}: restoration plan", placement=placement)
    # For people: nothing is decided by these, so that nothing waits for the disk.
    told = text(plan) + "".join(f"{line}\n" for line in lines)
    write_text(directory.plan, told, lasting=False)
    write_text(directory.plan_json, json_text(plan, devices), lasting=False)
    write_text(directory.plan_html, page, lasting=False)
    run = {
        "experiment": name,
        "run_dir": str(directory.path.resolve()),
        "tracking_uri": store.store or None,
        "run_id": store.run_id(directory.path),
    }
    provenance = json.dumps(document(plan, run, context.sources.origins()), indent=1) + "\n"
    for file in directory.provenances:
        file.parent.mkdir(exist_ok=True)
        # The first lasts; the end of the run mends the others by it.
        write_text(file, provenance, lasting=file == directory.provenances[0])
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
