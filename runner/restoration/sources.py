"""Opens the checkpoints that scaffolds name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from runner.checkpoints.contents import NoCheckpointError
from runner.checkpoints.locate import LATEST, Artifacts, resolve
from runner.checkpoints.open import AverageReader, averaged, open_checkpoint
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec
from runner.config.choices import EXPERIMENT, OPTIONAL
from runner.config.schema import ScaffoldConfig
from runner.errors import CheckpointError, Problem, TrackingError
from runner.restoration.plan import LocatedSources
from runner.runs.provenance import Origin, origin


@dataclass(frozen=True)
class Source:
    """The checkpoint of a scaffold, or the mean of several.

    Attributes:
      spec: what it holds.
      origins: the checkpoints that it was resolved to, several where they are averaged.
      reader: reads it.
    """

    spec: CheckpointSpec
    origins: tuple[Origin, ...]
    reader: CheckpointReader


def open_source(
    scaffold: ScaffoldConfig, place: str, which: str | None, artifacts: Artifacts | None
) -> Source | None:
    """Returns the checkpoint of a scaffold; None when it is absent and optional.

    Args:
      scaffold: its configuration.
      place: where its `checkpoint` is: the same, or the run directory of an experiment.
      which: which checkpoint of a directory; None for the latest.
      artifacts: downloads what is in MLflow.

    Raises:
      CheckpointError: when it cannot be used.
      TrackingError: when the store of an MLflow URI cannot be.
    """
    try:
        paths = resolve(place, which or LATEST, scaffold.average, artifacts)
    except NoCheckpointError as error:
        if scaffold.optional:
            return None
        raise error.or_else(OPTIONAL) from error
    readers = [open_checkpoint(path) for path in paths]
    specs = [reader.spec() for reader in readers]
    origins = tuple(origin(str(scaffold.checkpoint), spec) for spec in specs)
    if len(readers) == 1:
        return Source(specs[0], origins, readers[0])
    return Source(averaged(specs), origins, AverageReader(readers))


def open_sources(
    scaffolds: Mapping[str, ScaffoldConfig], artifacts: Artifacts | None
) -> tuple[LocatedSources, dict[str, Source]]:
    """Opens the checkpoints of scaffolds outside a run, where no experiment can be trained.

    Args:
      scaffolds: name -> configuration.
      artifacts: downloads what is in MLflow.

    Returns:
      What was found, with the problems of what was not, and scaffold -> source.
    """
    found: dict[str, Source] = {}
    problems: dict[str, tuple[Problem, ...]] = {}
    for name, scaffold in scaffolds.items():
        try:
            source = _outside_a_run(scaffold, artifacts)
        except (CheckpointError, TrackingError) as error:
            where = f"scaffolds.{name}.checkpoint"
            problems[name] = tuple(
                replace(each, state=f"{where}: {each.state}") for each in error.problems
            )
            continue
        if source is not None:
            found[name] = source
    specs = {name: found[name].spec if name in found else None for name in scaffolds}
    return LocatedSources(specs, problems), found


def _outside_a_run(scaffold: ScaffoldConfig, artifacts: Artifacts | None) -> Source | None:
    place = scaffold.checkpoint
    if place is None:
        return None
    if place.startswith(EXPERIMENT):
        name = place.removeprefix(EXPERIMENT)
        raise CheckpointError(
            Problem(
                f"{place} names an experiment",
                "only `python -m runner` composes and trains experiments",
                f"name a run of it, for example checkpoint=runs/{name}/001 and which=best",
            )
        )
    return open_source(scaffold, place, scaffold.which, artifacts)
