"""Records a run: its configuration, plan and end; and prints its last lines."""

from __future__ import annotations

import hashlib
import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from omegaconf import OmegaConf

from runner.checkpoints import contents
from runner.config.cluster_spec import configured
from runner.config.command import on_run, program, resuming
from runner.config.keys import flatten
from runner.config.schema import RunConfig, ScaffoldConfig
from runner.config.training_schema import metric_of
from runner.errors import InterruptedRunError, PrunedRunError, UserCodeError
from runner.graph.build import graph_maker
from runner.planning.html_report import html
from runner.planning.json_report import json_text, provenance_document
from runner.planning.plan import RestorationPlan
from runner.planning.report import summary, text
from runner.runs.provenance import (
    DIGEST,
    SOURCE_TAG,
    name_tracked_run,
    source_run_tags,
)
from runner.runs.run_directory import PROVENANCE, RunDirectory
from runner.system.atomic_files import write_text
from runner.system.status import Status
from runner.tracking import Tracker
from runner.tracking.journal import Dataset, history
from runner.tracking.stored_runs import COMMAND_TAG, DESCRIPTION_TAG
from runner.tracking.tracking_directory import TrackingDirectory
from runner.training.experiment import OpenedRun, process_tags

PROOF_TAG = "runner.proof"
"""Prefix of the tags that hold the verdict of a proof."""


@contextmanager
def recorded(run: OpenedRun) -> Iterator[None]:
    """Records the start of a run and, at the end of the block, how it ended; then closes it.

    A run that is trained to its end is FINISHED: a signal only shortens the wait for its delivery.

    Args:
      run: the opened run; its directory is released at the end. Signals interrupt neither the
        opening nor the closing of its tracker.
    """
    status = Status.FAILED
    directory, interruption = run.directory, run.interruption
    tracker: Tracker | None = None
    try:
        with interruption.deferred():  # A run whose id a signal withheld would stay RUNNING.
            tracker = run.open_tracker()
        interruption.check()
        _record_start(run)
        is_new = run.plan is not None
        run.experiment.recorder.attach(tracker, directory.path, is_new=is_new)
        yield
        status = Status.FINISHED
    except InterruptedRunError:
        status = Status.KILLED
        raise
    except PrunedRunError as error:
        status = Status.PRUNED
        if tracker is not None:
            tracker.set_tags({"runner.pruned": str(error)})
        raise
    except BaseException as error:
        if tracker is not None:
            tracker.set_tags({"runner.exception": _described(error)[:5000]})
            tracker.log_text(traceback.format_exc(), "traceback.txt")
        if isinstance(error, UserCodeError) and error.place == "data.train()":
            directory.update(input_failed=True)
        raise
    finally:
        with interruption.deferred():
            try:
                run.experiment.recorder.detach()
                if tracker is not None:
                    name_tracked_run(directory, run.experiment.store)
                    if status is Status.FINISHED:
                        _record_figures(run)
                    _record_end(run)
                    tracker.close(status.in_mlflow, interruption.remaining)
                if run.experiment.context.ends_command and status is Status.FINISHED:
                    interruption.finish()  # A signal ends the wait above; the rest takes no time.
                if tracker is not None:
                    name_tracked_run(directory, run.experiment.store)
                # Last: a run whose end was cut short is still RUNNING, and the next one of its
                # experiment marks it KILLED, in the store too.
                directory.update(status=status)
            finally:
                directory.release()


def _describe(run: OpenedRun) -> None:
    """Sets the description: the best value so far, what the run started from, and the command."""
    best = _best_value(run)
    start = "\n".join(f"- {line}" for line in run.directory.load_record().start.splitlines())
    command = run.experiment.mask.command(process_tags(Path.cwd())[COMMAND_TAG])
    parts = [f"Best: **{best}**" if best else "", start, f"```sh\n{command}\n```"]
    run.tracker.set_tags({DESCRIPTION_TAG: "\n\n".join(filter(None, parts))})


def _described(error: BaseException) -> str:
    """Returns type and message of an error; of the cause for a UserCodeError."""
    cause = error.__cause__ if isinstance(error, UserCodeError) else None
    return f"{type(cause or error).__name__}: {cause or error}"


def _record_start(run: OpenedRun) -> None:
    directory, tracker, experiment = run.directory, run.tracker, run.experiment
    config = experiment.config
    plain = asdict(replace(config, cluster=configured(config.cluster)))
    plain = experiment.mask.settings(plain)
    former = _plain(directory.config) if directory.config.is_file() else {}
    compiled = experiment.mask.settings(run.built.compiled)
    file = OmegaConf.to_yaml(OmegaConf.create(plain)) + _commented(compiled)
    write_text(directory.config, file, lasting=False)
    overrides = experiment.mask.overrides(experiment.context.overrides)
    write_text(directory.overrides, OmegaConf.to_yaml(OmegaConf.create(overrides)), lasting=False)
    chosen = _chosen(flatten(plain), former, overrides)
    tracker.log_parameters({**flatten(compiled), **chosen})
    node = plain[graph_maker(experiment.config).data_key]
    data = json.dumps(node, sort_keys=True, default=str)
    name = str(node.get("train", node)["_target_"])
    digest = hashlib.sha256(data.encode()).hexdigest()[:16]
    tracker.log_dataset(Dataset(name, digest, "train", data, run.built.sizes))
    tracker.log_artifact(directory.config)
    tracker.log_artifact(directory.overrides)
    if run.plan is not None:
        _record_plan(run, run.plan)
    _describe(run)


def _commented(compiled: Mapping[str, Any]) -> str:
    """Returns the model's compilation as comments, because no run is built from it."""
    if not compiled:
        return ""
    lines = OmegaConf.to_yaml(OmegaConf.create(dict(compiled))).splitlines()
    head = "The model is compiled with these, for which the configuration names nothing:"
    return "".join(f"# {line}\n" for line in (head, *lines))


def _plain(file: Path) -> dict[str, object]:
    loaded: Any = OmegaConf.to_container(OmegaConf.load(file))
    return flatten(loaded)


def _chosen(
    values: Mapping[str, object], former: Mapping[str, object], overrides: Sequence[str]
) -> dict[str, object]:
    """Returns the values that the user or the experiment has chosen; `config.yaml` has all.

    Args:
      values: all values, by their dotted keys.
      former: those with which the run was recorded before; what has changed is chosen.
      overrides: the command's.
    """
    defaults = flatten(asdict(RunConfig())) | {"run_dir": f"runs/{values['name']}"}
    of_part = flatten(asdict(ScaffoldConfig()))
    typed = {override.lstrip("+~").partition("=")[0] for override in overrides}

    def is_default(key: str, value: object) -> bool:
        if key.startswith("scaffolds."):
            return of_part.get(key.split(".", 2)[-1], key) == value
        return defaults.get(key, key) == value

    return {
        key: value
        for key, value in values.items()
        if key == "seed"
        or key in typed
        or former.get(key, value) != value
        or not (is_default(key, value) or value in (None, [], {}))
    }


def _record_plan(run: OpenedRun, plan: RestorationPlan) -> None:
    """Writes the plan, and the provenance of its variables beside the checkpoints to come."""
    directory, tracker = run.directory, run.tracker
    _write_plan(run, plan)
    _write_provenance(run, plan)
    for file in (
        directory.plan,
        directory.plan_json,
        directory.plan_html,
        directory.provenances[0],
    ):
        tracker.log_artifact(file)
    specs = {name: spec for name, spec in plan.sources.items() if spec is not None}
    paths = {name: spec.path for name, spec in specs.items()}
    mask = run.experiment.mask
    sources = {name: mask.text(_absolute(path)) for name, path in paths.items()}
    directory.update(sources=sources, start=mask.text("\n".join(summary(plan))))
    tracker.set_tags({f"{SOURCE_TAG}.{name}": path for name, path in paths.items()})
    tracker.set_tags({f"{SOURCE_TAG}.{name}{DIGEST}": spec.digest for name, spec in specs.items()})
    for proof in plan.proofs:
        name = proof.scaffold or "model"
        tracker.set_tags({f"{PROOF_TAG}.{name}": proof.lines()[0]})
        largest = max(c.relative for c in proof.outputs or proof.layers)
        tracker.log_metrics({f"proof/{name}": largest}, 0)
    tracker.set_tags(source_run_tags(paths, run.experiment.store))


def _write_plan(run: OpenedRun, plan: RestorationPlan) -> None:
    """Writes the plan for people to read; nothing depends on it, so nothing waits for the disk."""
    directory = run.directory
    placement = run.coordinator.replica.placement(run.built.variables)
    lines = placement.lines(plan, full=False) if placement else []
    shown = text(plan) + "".join(f"{line}\n" for line in lines)
    devices = placement.devices if placement else None
    divisions = {placement.title: placement.by_device(plan)} if placement else {}
    page = html(plan, f"{run.config.name}: restoration plan", divisions=divisions)
    mask = _mask_of_addresses(run, plan)
    write_text(directory.plan, mask(shown), lasting=False)
    write_text(directory.plan_json, mask(json_text(plan, devices)), lasting=False)
    write_text(directory.plan_html, mask(page), lasting=False)


def _mask_of_addresses(run: OpenedRun, plan: RestorationPlan) -> Callable[[str], str]:
    """Returns what masks the texts of a plan: nothing where no address of a source has a secret."""
    mask = run.experiment.mask
    addresses = "\n".join(spec.path for spec in plan.sources.values() if spec is not None)
    # The texts of a large plan are megabytes.
    return mask.text if mask.text(addresses) != addresses else str


def _write_provenance(run: OpenedRun, plan: RestorationPlan) -> None:
    directory, experiment = run.directory, run.experiment
    document = provenance_document(
        plan,
        experiment.sources.origins(),
        experiment=run.config.name,
        run_dir=directory.path.resolve(),
        tracking_uri=experiment.store.store or None,
        run_id=experiment.store.run_id(directory.path),
    )
    masked = _mask_of_addresses(run, plan)(json.dumps(document))
    _write_document(directory, json.loads(masked))


def record_first_values(run: OpenedRun, checksums: Mapping[str, str]) -> None:
    """Adds the checksums of the restored values to the provenance, for `runner verify`."""
    file = run.directory.provenances[0]
    document = json.loads(file.read_text())
    for name, checksum in checksums.items():
        document["variables"][name]["first_value"] = checksum
    _write_document(run.directory, document)
    run.tracker.log_artifact(file)


def _write_document(directory: RunDirectory, document: Mapping[str, object]) -> None:
    content = json.dumps(document, indent=1) + "\n"
    for file in directory.provenances:
        file.parent.mkdir(exist_ok=True)
        # The first lasts; the end of the run completes the others from it.
        write_text(file, content, lasting=file == directory.provenances[0])


def _absolute(path: str) -> str:
    """Returns a path that holds wherever a process is; an address or an average stays as it is."""
    return str(Path(path).absolute()) if Path(path).parent.exists() else path


def _record_end(run: OpenedRun) -> None:
    """Logs the final and the best checkpoint, and updates the run's description."""
    directory, tracker = run.directory, run.tracker
    _describe(run)
    final = tf.train.latest_checkpoint(str(directory.checkpoints))
    for file in sorted(Path(final).parent.glob(f"{Path(final).name}.*")) if final else ():
        tracker.log_artifact(file, "checkpoints")
    beside = directory.checkpoints / PROVENANCE
    if final and beside.is_file():
        tracker.log_artifact(beside, "checkpoints")
    if directory.best_record.is_file():
        tracker.log_artifact(directory.best)


def _record_figures(run: OpenedRun) -> None:
    """Draws the figures of a run that is recorded in MLflow and is no trial of a sweep."""
    directory, experiment = run.directory, run.experiment
    if not (experiment.config.tracking.figures and experiment.store.store) or run.watch.parent:
        return
    # Importing Matplotlib takes a part of a second.
    from runner.training.figures import draw, run_plots

    steps = history(TrackingDirectory(directory.path).journal)
    plan = directory.plan_json
    content = json.loads(plan.read_text()) if plan.is_file() else None
    step, _ = directory.best_evaluation() or (None, {})
    for file in draw(run_plots(steps, content, best=step), directory.path / "figures"):
        run.tracker.log_artifact(file, "figures")


def result_lines(run: OpenedRun) -> Iterator[str]:
    """Yields the last lines of a finished run: its result, where to find it, and what is next."""
    if best := _best_value(run):
        yield f"best:    {best}"
    yield f"time:    {_duration(time.monotonic() - run.started)}"
    yield f"results: {run.tracker.location()}"
    yield f"files:   {run.directory.path}"
    if command := run.experiment.store.open_command():
        yield f"open:    {command}"
    page = run.experiment.store.page(run.directory.path)
    if page and page not in run.tracker.location():
        yield f"page:    {page}"
    if run.experiment.context.print_next_commands:
        evaluates = bool(run.built.evaluation.metrics)
        if evaluates:
            yield f"test:    {on_run('evaluate', run.directory.path)}"
        which = "" if evaluates else " export.which=latest"  # There is no best checkpoint.
        yield f"export:  {on_run('export', run.directory.path)}{which}"


def interrupted_lines(run: OpenedRun) -> Iterator[str]:
    """Yields the last lines of a run ended by a signal; none if another process reports that."""
    if not run.experiment.context.print_next_commands:
        return
    steps = contents.steps(str(run.directory.checkpoints))
    yield f"saved:   {f'step {max(steps)}' if steps else 'nothing yet'}"
    if best := _best_value(run):
        yield f"best:    {best}"
    yield f"files:   {run.directory.path}"
    yield f"resume:  {program()} {run.experiment.mask.command(resuming())}"


def _best_value(run: OpenedRun) -> str:
    """Returns the objective, its best value so far and its step; empty before an evaluation."""
    best = run.directory.best_evaluation()
    if best is None:
        return ""
    step, metrics = best
    objective = run.config.train.objective
    return f"{objective} {metrics[metric_of(objective)]:.4g} at step {step}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
    first = next((index for index, (count, _) in enumerate(parts) if count), 2)
    # Two units are enough.
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2])
