"""`runner verify RUN`: derives the values that a run started from again, from its sources.

What a run has recorded is enough: its configuration, `plan.json` and `provenance.json`. Its model
is built for files of Keras alone, whose variables have no names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from runner.checkpoints.open import open_pinned
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec, TensorSpec
from runner.config.choices import StateClass
from runner.config.scaffold_reading import read_restoration, read_scaffolds
from runner.config.schema import RunConfig
from runner.console import plural
from runner.errors import CheckpointError, ConfigError, Problem, RunDirectoryError, RunnerError
from runner.graph.trained_model import initial_model
from runner.planning.model_variables import keras_variables
from runner.planning.optimizer_slots import keras_slots
from runner.planning.places import WeightsLayout
from runner.planning.plan import LocatedSources, RestorationPlan
from runner.planning.variables import Partition, VariableSpec
from runner.planning.weights_layout import plan_located, weights_layout
from runner.restoration.reading import checksum, converted_values
from runner.runs.run_directory import PROVENANCE, RunDirectory


@dataclass(frozen=True)
class Start:
    """The start of a run, from its records and its sources.

    Attributes:
      config: the model and data of its configuration; all else has defaults.
      plan: where its variables' first values come from, planned again.
      readers: scaffold -> the reader of its checkpoint, which has the recorded digest.
      recorded: `variables` of `provenance.json`.
    """

    config: RunConfig
    plan: RestorationPlan
    readers: Mapping[str, CheckpointReader]
    recorded: Mapping[str, Any]


def start_of(run: str) -> Start:
    """Reads the start of a run.

    Raises:
      RunDirectoryError: when the folder is no run, or lacks a record of its start.
      CheckpointError: with every source that is missing or has another digest.
    """
    directory = RunDirectory(Path(run))
    directory.named_record()
    try:
        document = json.loads(directory.provenances[0].read_text())
        variables = json.loads(directory.plan_json.read_text())["variables"]
        # It is resolved, but for what hooks take of a graph or a run.
        recorded: Any = OmegaConf.to_container(OmegaConf.load(directory.config), resolve=False)
    except OSError as error:
        state = f"{run} has no record of its start"
        raise RunDirectoryError.of(state, f"{error.filename} cannot be read") from error
    scaffolds, problems = read_scaffolds(recorded["scaffolds"])
    rules, more = read_restoration(recorded["restoration"])
    if problems or more:
        raise ConfigError(*problems, *more)
    config = RunConfig(model=recorded["model"] or {}, data=recorded["data"] or {})

    def layout() -> WeightsLayout:
        model = initial_model(config)
        return weights_layout(model, keras_variables(model))

    readers = _open(document["sources"])
    sources: dict[str, CheckpointSpec | None] = dict.fromkeys(scaffolds)
    sources |= {name: reader.spec() for name, reader in readers.items()}
    specs = [*map(_spec, variables)]
    of_optimizers = (StateClass.optimizer_slots, StateClass.moving_averages)
    shapes = {spec.name: spec.full_shape for spec in specs if spec.state in of_optimizers}
    plan = plan_located(
        specs,
        scaffolds,
        LocatedSources(sources),
        rules=rules,
        layout=layout if recorded["model"] else None,  # A graph of the user's has no layers.
        slots=keras_slots(shapes),
    )
    return Start(config, plan, readers, document["variables"])


def _open(sources: Mapping[str, Any]) -> dict[str, CheckpointReader]:
    readers: dict[str, CheckpointReader] = {}
    problems: list[Problem] = []
    for name, origins in sources.items():
        with CheckpointError.within(f"scaffolds.{name}", problems):
            readers[name] = open_pinned([(o["path"], o["digest"]) for o in origins])
    if problems:
        raise CheckpointError(*problems)
    return readers


def _spec(variable: Mapping[str, Any]) -> VariableSpec:
    """Returns a variable as `json_report.json_text` describes it."""
    part = variable["partition"]
    return VariableSpec(
        TensorSpec(variable["name"], tuple(variable["shape"]), variable["dtype"]),
        next(state for state in StateClass if state.noun == variable["state"]),
        variable["trainable"],
        variable["initializer"],
        frozen=variable["frozen"],
        partition=part and Partition(part["name"], tuple(part["shape"]), tuple(part["offset"])),
        shared_by=tuple(variable["shared_by"]),
        layer=variable["layer"],
        flattened=tuple(variable["flattened"]),
        address=variable["address"],
        axes=tuple(variable["axes"]),
    )


def verify(run: str) -> list[str]:
    """Derives the restored values of a run again and compares them with its first ones.

    Returns:
      Lines on what agrees, bit for bit, and what comes from initializers.

    Raises:
      RunnerError: with every variable that differs, or whose first value is not recorded.
    """
    start = start_of(run)
    restored = [a for a in start.plan.assignments if a.source_tensor]
    problems = [*start.plan.problems, *_changed_tensors(start)]
    whole = [a for a in restored if not a.needs_initial]
    lacking = []
    for assignment, value in [] if problems else converted_values(whole, start.readers, {}):
        name = assignment.variable.name
        first = start.recorded[name].get("first_value")
        if first is None:
            lacking.append(name)
        elif (derived := checksum(value)) != first:
            cause = f"{derived} is derived, and the run started from {first}"
            remedy = "compare the version and the vocabulary files of the run with today's"
            problems.append(Problem(f"{name} is derived with another value", cause, remedy))
    if lacking:
        count = plural(len(lacking), "variable")
        cause = (
            f"{PROVENANCE} lacks the `first_value` of {count}: the run ended before its first step"
        )
        state = f"{run}: the sources have the recorded digests, and there is nothing to compare"
        problems.append(Problem(state, cause))
    if problems:
        raise RunnerError(*problems)
    lines = [f"{run}: {plural(len(whole), 'variable')} derived again, bit for bit as at its start"]
    specs = start.plan.sources.items()
    lines += [f"  {name}: {spec.path} {spec.digest}" for name, spec in specs if spec]
    initial = [a.variable for a in start.plan.assignments if a not in restored]
    brought = [variable for variable in initial if variable.is_of_model]
    count = plural(len(initial) - len(brought), "variable")
    lines.append(f"  {count} from initializers, which are not derived")
    if brought:
        count = plural(len(brought), "variable")
        lines.append(f"  {count} from the values that the model brought along, which no file holds")
    if len(whole) < len(restored):
        parts = ", ".join(a.variable.name for a in restored if a.needs_initial)
        lines.append(f"  not compared, as they keep a part of their initial value: {parts}")
    return lines


def _changed_tensors(start: Start) -> Iterator[Problem]:
    """Yields a problem for each variable that the plan takes from other tensors than the run."""
    for assignment in start.plan.assignments:
        name = assignment.variable.name
        source_tensor, recorded = assignment.source_tensor, start.recorded.get(name, {})
        taken = recorded.get("source_tensor")
        tensors = taken and (taken["source"], *taken["tensors"])
        if tensors != (source_tensor and (source_tensor.source, *source_tensor.names)):
            cause = f"the run took {tensors or 'no tensor'}"
            yield Problem(f"{name} is planned from other tensors", cause)
