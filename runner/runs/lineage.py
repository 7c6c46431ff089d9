"""The runs that a run started from, and theirs: `python -m runner.lineage RUN`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.errors import Problem, RunDirectoryError
from runner.runs.provenance import SCHEMA
from runner.runs.run_directory import RunDirectory
from runner.system.atomic_files import write_text
from runner.tracking.address import DEFAULT_URI
from runner.tracking.tracker import RunStore

if TYPE_CHECKING:
    from runner.tracking.mlflow_store import MlflowStore


logger = logging.getLogger(__name__)

SOURCE_TAG = "runner.source"
"""Prefix of the tags with the checkpoint of each scaffold."""
DIGEST = ".digest"
"""Suffix of such a tag that has the digest of the checkpoint instead."""
SOURCE_RUN_TAG = "runner.source_run"
"""Prefix of the tags with the run that saved a scaffold's checkpoint: its id, or its directory."""


@dataclass(frozen=True)
class Ancestor:
    """A run or a checkpoint, and by scaffold the runs or checkpoints it started from."""

    label: str
    sources: Mapping[str, Ancestor]


def lineage(run: str, uri: str = DEFAULT_URI) -> Ancestor:
    """Returns a run with all its ancestors.

    Args:
      run: a run directory; or the id of a run in MLflow, whose directory may be gone.
      uri: MLflow's tracking URI, for an id.

    Raises:
      RunDirectoryError: a directory that is not a run directory.
      NotInStoreError: the store has no such run.
      TrackingError: the store cannot be used.
    """
    path = Path(run)
    if RunDirectory(path).read() is not None:
        return _directory(path)
    if path.is_dir():
        raise RunDirectoryError(
            Problem(f"{path} is no run", "it has no run.json", "name a run, such as runs/NAME/001")
        )
    from runner.tracking.mlflow_store import MlflowStore

    return _tracked(run, MlflowStore(uri))


def run_directory(checkpoint: str) -> Path | None:
    """Returns the run directory of a checkpoint; None when no run has saved it."""
    for parent in list(Path(checkpoint).absolute().parents)[:2]:
        if RunDirectory(parent).read() is not None:
            return parent
    return None


def source_run_tags(sources: Mapping[str, str], store: RunStore) -> dict[str, str]:
    """Returns tags that link the runs which saved `sources`, scaffold -> checkpoint.

    A run that the store does not have, or not yet, is linked by its directory.
    """
    tags = {}
    for name, checkpoint in sources.items():
        directory = run_directory(checkpoint)
        if directory is not None:
            tags[f"{SOURCE_RUN_TAG}.{name}"] = store.run_id(directory) or str(directory)
    return tags


def name_tracked_run(directory: RunDirectory, store: RunStore) -> None:
    """Adds the store's id of a run, known only once it is delivered, to its provenance."""
    own, *copies = directory.provenances
    if not own.is_file():
        return
    run_id = store.run_id(directory.path)
    try:
        found = json.loads(own.read_text())
        if found["schema"] != SCHEMA:
            return
        # Another one where the store lost the first, and the run was recorded anew.
        found["run"]["run_id"] = run_id or found["run"].get("run_id")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s is not the provenance of a run: %r", own, error)
        return
    text = json.dumps(found, indent=1) + "\n"
    for file in (own, *(copy for copy in copies if copy.parent.is_dir())):
        if not file.is_file() or file.read_text() != text:
            write_text(file, text)


def _directory(path: Path) -> Ancestor:
    record = RunDirectory(path).require()
    objective = "" if record.objective is None else f", objective {record.objective:.6g}"
    return Ancestor(
        f"{record.name}  {path}  {record.status}{objective}",
        {name: _checkpoint(checkpoint) for name, checkpoint in record.sources.items()},
    )


def _checkpoint(path: str) -> Ancestor:
    directory = run_directory(path)
    return Ancestor(path, {}) if directory is None else _directory(directory)


def _tracked(run_id: str, store: MlflowStore) -> Ancestor:
    run = store.run(run_id)
    prefix = f"{SOURCE_TAG}."
    sources = {}
    for tag, checkpoint in run.tags.items():
        if tag.startswith(prefix) and not tag.endswith(DIGEST):
            name = tag.removeprefix(prefix)
            source = run.tags.get(f"{SOURCE_RUN_TAG}.{name}")
            if source is None:
                sources[name] = Ancestor(checkpoint, {})
            elif Path(source).is_absolute():
                sources[name] = _checkpoint(checkpoint)
            else:
                sources[name] = _tracked(source, store)
    return Ancestor(f"{run.experiment}  run {run.run_id}  {run.status}", sources)
