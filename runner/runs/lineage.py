"""The runs that a run started from, and theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import ConfigError
from runner.runs.provenance import DIGEST, SOURCE_RUN_TAG, SOURCE_TAG, run_directory
from runner.runs.run_directory import RunDirectory
from runner.tracking.address import DEFAULT_URI

if TYPE_CHECKING:
    from runner.tracking.mlflow_store import MlflowStore


# Of MLflow.
_RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Ancestor:
    """A run or a checkpoint, and by scaffold the runs or checkpoints it started from."""

    label: str
    sources: Mapping[str, Ancestor]


def lineage(run: str, uri: str | None = None) -> Ancestor:
    """Returns a run with all its ancestors.

    Args:
      run: a run directory; or the id of a run in MLflow, whose directory may be gone.
      uri: MLflow's tracking URI, for an id; None for the default.

    Raises:
      ConfigError: a URI is given, and no id.
      RunDirectoryError: neither a run directory nor an id.
      NotInStoreError: the store has no such run.
      TrackingError: the store cannot be used.
    """
    path = Path(run)
    if path.is_dir() or not _RUN_ID.fullmatch(run):
        if uri is not None:
            kind = "a directory" if path.is_dir() else "no id of MLflow, which has 32 digits"
            remedy = "leave out the URI, or name the run by its id"
            raise ConfigError.of(f"{run} is not in {uri}", f"it is {kind}", remedy)
        return _run(path)
    from runner.tracking.mlflow_store import MlflowStore

    return _tracked_run(run, MlflowStore(uri or DEFAULT_URI))


def _run(path: Path) -> Ancestor:
    record = RunDirectory(path).named_record()
    objective = "" if record.objective is None else f", objective {record.objective:.6g}"
    return Ancestor(
        f"{record.name}  {path}  {record.status}{objective}",
        {name: _checkpoint(checkpoint) for name, checkpoint in record.sources.items()},
    )


def _checkpoint(path: str) -> Ancestor:
    directory = run_directory(path)
    return Ancestor(path, {}) if directory is None else _run(directory)


def _tracked_run(run_id: str, store: MlflowStore) -> Ancestor:
    run = store.run(run_id)
    sources = {}
    for tag, checkpoint in run.tags.items():
        if tag.startswith(f"{SOURCE_TAG}.") and not tag.endswith(DIGEST):
            name = tag.removeprefix(f"{SOURCE_TAG}.")
            source = run.tags.get(f"{SOURCE_RUN_TAG}.{name}")
            if source is None:
                sources[name] = Ancestor(checkpoint, {})
            elif Path(source).is_absolute():
                sources[name] = _checkpoint(checkpoint)
            else:
                sources[name] = _tracked_run(source, store)
    return Ancestor(f"{run.experiment}  run {run.run_id}  {run.status}", sources)


def tree(ancestor: Ancestor) -> Iterator[str]:
    """Yields the lines of a tree of a run and its ancestors."""
    yield ancestor.label
    for number, (name, source) in enumerate(ancestor.sources.items(), start=1):
        last = number == len(ancestor.sources)
        first, *others = tree(source)
        yield f"{'└── ' if last else '├── '}{name}: {first}"
        yield from (f"{'    ' if last else '│   '}{line}" for line in others)
