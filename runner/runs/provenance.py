"""Where a run came from: its code and machine as tags, its variables' values as a document.

The document links to those of the checkpoints that the run started from, as do the tags: `lineage`
follows them to the runs that a run started from, and theirs.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.checkpoints import files
from runner.checkpoints.reader import CheckpointSpec
from runner.errors import Problem, RunDirectoryError
from runner.runs.run_directory import PROVENANCE, RunDirectory
from runner.system.atomic_files import write_text
from runner.tracking import RunStore
from runner.tracking.address import DEFAULT_URI
from runner.tracking.tracker import COMMAND_TAG

if TYPE_CHECKING:
    from runner.tracking.mlflow_store import MlflowStore

logger = logging.getLogger(__name__)

SCHEMA = 1

SOURCE_TAG = "runner.source"
"""Prefix of the tags with the checkpoint of each scaffold."""
DIGEST = ".digest"
"""Suffix of such a tag that has the digest of the checkpoint instead."""
SOURCE_RUN_TAG = "runner.source_run"
"""Prefix of the tags with the run that saved a scaffold's checkpoint: its id, or its directory."""

_RUN_URI = re.compile(r"runs:/+([^/]+)(/.*)?")

# MLflow's own names of tags, spelt out so that importing this does not import MLflow.
_GIT, _SOURCE, _USER = "mlflow.source.git", "mlflow.source", "mlflow.user"
_PACKAGES = ("runner", "tensorflow", "keras", "numpy", "mlflow", "hydra-core", "omegaconf")
_GIT_SECONDS = 10.0
# In a URI such as http://user:password@host.
_PASSWORD = re.compile(r"(?<=:)[^\s/@:]+(?=@)")


@dataclass(frozen=True)
class Origin:
    """A checkpoint that a source was resolved to.

    Attributes:
      checkpoint: as the configuration names it.
      spec: of what it was resolved to.
      run: `run` of the provenance beside it, or {`run_id`} of a `runs:/` URI; None if unknown.
      provenance: the document beside it; None when there is none.
    """

    checkpoint: str
    spec: CheckpointSpec
    run: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """Returns it as plain values: what `provenance.json` has of a source."""
        return {
            "checkpoint": self.checkpoint,
            "path": self.spec.path,
            "step": self.spec.step,
            "digest": self.spec.digest,
            "run": self.run,
            "provenance": self.provenance,
        }


def chain(found: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yields a report of where a checkpoint's variables came from, back to the first source."""
    run = found["run"]
    yield f"{indent}{run['experiment']} in {run['run_dir']}{_tracked(run)}"
    for name, variable in found["variables"].items():
        for piece in variable.get("pieces", ()):
            step = "" if piece["step"] is None else f" @ step {piece['step']}"
            how = f" ({', '.join(piece['conversions'])})" if piece["conversions"] else ""
            tensors = " + ".join(piece["tensors"])
            yield f"{indent}  {name} <- {piece['source']}: {tensors}{step}{how}"
    initialised = [name for name, each in found["variables"].items() if "initializer" in each]
    yield f"{indent}  {len(initialised)} from initializers: {', '.join(initialised) or 'none'}"
    for name, origins in found["sources"].items():
        for origin in origins:
            yield f"{indent}  {name}: {origin['path']} {origin['digest']}{_tracked(origin['run'])}"
            if origin["provenance"] is not None:
                yield from chain(origin["provenance"], indent + "    ")


def _tracked(run: Mapping[str, Any] | None) -> str:
    if run is None or run.get("run_id") is None:
        return ""
    return f", MLflow run {run['run_id']}"


def origin(checkpoint: str, spec: CheckpointSpec) -> Origin:
    """Returns the origin of a checkpoint as the configuration names it, and its provenance."""
    found = provenance_of(spec.path)
    uri = _RUN_URI.fullmatch(checkpoint)
    run = found["run"] if found else {"run_id": uri[1]} if uri else None
    if found and uri and found["run"].get("run_id") is None:
        # It was written before MLflow's id of the run was known.
        run = {**found["run"], "run_id": uri[1]}
        found = {**found, "run": run}
    return Origin(checkpoint, spec, run, found)


def provenance_of(path: str) -> dict[str, Any] | None:
    """Returns the document beside a checkpoint, or in a directory; None when there is none.

    A file of that name that no run has written is left out with a warning.
    """
    for folder in (path, os.path.dirname(path)):
        file = os.path.join(folder, PROVENANCE)
        if not files.is_file(file):
            continue
        try:
            found: dict[str, Any] = json.loads(files.read_text(file))
            if found["schema"] == SCHEMA and isinstance(found["run"], dict):
                return found
            logger.warning("%s has another layout than this version's", file)
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s is not the provenance of a checkpoint: %r", file, error)
        return None
    return None


def environment_tags(directory: Path) -> dict[str, str]:
    """Returns tags for the code in the repository around `directory`, its host and its user.

    Git's commit, branch and `true` or `false` for changes to tracked files; the user, the host,
    the command with passwords in URIs masked, and the versions of Python and of the packages that
    results depend on. What is unknown is left out, such as the git tags outside a repository.
    """
    program = Path(sys.argv[0])
    tags = {
        f"{_SOURCE}.name": program.parent.name if program.name == "__main__.py" else program.name,
        f"{_SOURCE}.type": "LOCAL",
        COMMAND_TAG: shlex.join(_PASSWORD.sub("***", each) for each in sys.orig_argv),
        "runner.host": socket.gethostname(),
        "runner.python": platform.python_version(),
        **git_tags(directory),
    }
    try:
        tags[_USER] = getpass.getuser()
    # Which one depends on the Python version: the user id has no name, as in many containers.
    except (KeyError, OSError, ImportError) as error:
        logger.debug("The user has no name: %s", error)
    for package in _PACKAGES:
        try:
            tags[f"runner.version.{package}"] = metadata.version(package)
        except metadata.PackageNotFoundError:
            logger.debug("The package %s is not installed.", package)
    return tags


def git_tags(directory: Path) -> dict[str, str]:
    """Returns the commit, branch and dirty flag of the repository around `directory`.

    Untracked files do not count as changes. A detached head has no branch, a repository
    without commits no commit; no repository, or no `git`, gives no tags.
    """
    command = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch"]
    try:
        status = subprocess.run(
            [*command, "--untracked-files=no"],
            cwd=directory,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("No git tags for %s: %s", directory, error)
        return {}
    tags = {f"{_GIT}.dirty": "false"}
    for line in status.stdout.splitlines():
        if line.startswith("# branch.oid ") and not line.endswith("(initial)"):
            tags[f"{_GIT}.commit"] = line.split()[-1]
        elif line.startswith("# branch.head ") and not line.endswith("(detached)"):
            tags[f"{_GIT}.branch"] = line.split(maxsplit=2)[-1]
        elif not line.startswith("#"):
            tags[f"{_GIT}.dirty"] = "true"
    return tags


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

    return _stored(run, MlflowStore(uri))


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
    found = provenance_of(str(directory.path)) if own.is_file() else None
    if found is None:
        return
    # Another one where the store lost the first, and the run was recorded anew.
    found["run"]["run_id"] = store.run_id(directory.path) or found["run"].get("run_id")
    text = json.dumps(found, indent=1) + "\n"
    for file in (own, *(copy for copy in copies if copy.parent.is_dir())):
        if not file.is_file() or file.read_text() != text:
            write_text(file, text)


def _directory(path: Path) -> Ancestor:
    record = RunDirectory(path).load_record()
    objective = "" if record.objective is None else f", objective {record.objective:.6g}"
    return Ancestor(
        f"{record.name}  {path}  {record.status}{objective}",
        {name: _checkpoint(checkpoint) for name, checkpoint in record.sources.items()},
    )


def _checkpoint(path: str) -> Ancestor:
    directory = run_directory(path)
    return Ancestor(path, {}) if directory is None else _directory(directory)


def _stored(run_id: str, store: MlflowStore) -> Ancestor:
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
                sources[name] = _stored(source, store)
    return Ancestor(f"{run.experiment}  run {run.run_id}  {run.status}", sources)
