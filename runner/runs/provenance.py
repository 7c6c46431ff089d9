"""Where a run came from: its code and machine as tags, its variables' values as a document.

Documents and tags link to the checkpoints and runs that a run started from; `lineage` follows
the links.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from runner.checkpoints import files
from runner.checkpoints.reader import CheckpointSpec
from runner.config.command import script, typed_command
from runner.errors import CheckpointError, RunDirectoryError
from runner.runs.run_directory import PROVENANCE, RunDirectory
from runner.system.atomic_files import write_text
from runner.tracking import RunStore
from runner.tracking.stored_runs import COMMAND_TAG

OF_MODEL = "value of the model"
"""Begins the initializer of a variable whose value the model brings along; a digest follows."""

logger = logging.getLogger(__name__)

SCHEMA = 2

SOURCE_TAG = "runner.source"
"""Prefix of the tags that name the checkpoint of each scaffold."""
DIGEST = ".digest"
"""Suffix of the tags that hold the digests of these checkpoints."""
SOURCE_RUN_TAG = "runner.source_run"
"""Prefix of the tags that name the run which saved each checkpoint: its id, or its directory."""

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
      checkpoint: its name in the configuration.
      spec: the metadata of the checkpoint.
      run: `run` of the provenance beside it, or {`run_id`} of a `runs:/` URI; None if unknown.
      provenance: the document beside it, if any.
    """

    checkpoint: str
    spec: CheckpointSpec
    run: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """Returns the entry of a source in `provenance.json`."""
        return {
            "checkpoint": self.checkpoint,
            "path": self.spec.path,
            "step": self.spec.step,
            "digest": self.spec.digest,
            "run": self.run,
            "provenance": self.provenance,
        }


def chain(document: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yields the lines of a report on where variables came from, back to the first source."""
    run = document["run"]
    yield f"{indent}{run['experiment']} in {run['run_dir']}{_tracked(run)}"
    for name, variable in document["variables"].items():
        if (source := variable.get("source_tensor")) is not None:
            step = "" if source["step"] is None else f" @ step {source['step']}"
            how = f" ({', '.join(source['conversions'])})" if source["conversions"] else ""
            tensors = " + ".join(source["tensors"])
            yield f"{indent}  {name} <- {source['source']}: {tensors}{step}{how}"
    initial = {n: v["initializer"] for n, v in document["variables"].items() if "initializer" in v}
    brought = {
        name: text.split()[-1] for name, text in initial.items() if text.startswith(OF_MODEL)
    }
    for name, digest in brought.items():
        yield f"{indent}  {name} <- {OF_MODEL} {digest}"
    initialised = [name for name in initial if name not in brought]
    yield f"{indent}  {len(initialised)} from initializers: {', '.join(initialised) or 'none'}"
    for name, origins in document["sources"].items():
        for origin in origins:
            yield f"{indent}  {name}: {origin['path']} {origin['digest']}{_tracked(origin['run'])}"
            if origin["provenance"] is not None:
                yield from chain(origin["provenance"], indent + "    ")


def _tracked(run: Mapping[str, Any] | None) -> str:
    if run is None or run.get("run_id") is None:
        return ""
    return f", MLflow run {run['run_id']}"


def origin(checkpoint: str, spec: CheckpointSpec) -> Origin:
    """Returns the origin of a checkpoint, with the provenance beside it.

    Args:
      checkpoint: its name in the configuration.
      spec: its metadata.

    Raises:
      CheckpointError: when a run of another format has saved it.
    """
    try:
        run_directory(spec.path)
    except RunDirectoryError as error:
        raise CheckpointError(*error.problems) from error
    document = provenance_of(spec.path)
    uri = _RUN_URI.fullmatch(checkpoint)
    run = document["run"] if document else {"run_id": uri[1]} if uri else None
    if document and uri and document["run"].get("run_id") is None:
        # It was written before MLflow's id of the run was known.
        run = {**document["run"], "run_id": uri[1]}
        document = {**document, "run": run}
    return Origin(checkpoint, spec, run, document)


def provenance_of(path: str) -> dict[str, Any] | None:
    """Returns the provenance beside a checkpoint, or in a directory; None without one.

    Ignores, with a warning, a file of that name that no run has written.
    """
    for folder in (path, os.path.dirname(path)):
        file = os.path.join(folder, PROVENANCE)
        if not files.is_file(file):
            continue
        try:
            document: dict[str, Any] = json.loads(files.read_text(file))
            if document["schema"] == SCHEMA and isinstance(document["run"], dict):
                return document
            logger.warning("%s has another layout than this version's", file)
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s is not the provenance of a checkpoint: %r", file, error)
        return None
    return None


def environment_tags(directory: Path) -> dict[str, str]:
    """Returns tags for the code in the repository around `directory`, and for this process.

    They hold Git's commit, branch and whether tracked files have changed; the user, the host, the
    command with passwords in URIs masked, and the versions of Python and of the packages that
    results depend on. Unknown values have no tag, such as Git's outside a repository.
    """
    program = script()
    tags = {
        f"{_SOURCE}.name": program.parent.name if program.name == "__main__.py" else program.name,
        f"{_SOURCE}.type": "LOCAL",
        COMMAND_TAG: shlex.join(_PASSWORD.sub("***", argument) for argument in typed_command()),
        "runner.host": socket.gethostname(),
        "runner.python": platform.python_version(),
        **git_tags(directory),
    }
    try:
        tags[_USER] = getpass.getuser()
    # The user id has no name in many containers; Python versions differ in the error.
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


def run_directory(checkpoint: str) -> Path | None:
    """Returns the directory of the run that saved a checkpoint; None where no run did."""
    for parent in list(Path(checkpoint).absolute().parents)[:2]:
        if RunDirectory(parent).read() is not None:
            return parent
    return None


def source_run_tags(sources: Mapping[str, str], store: RunStore) -> dict[str, str]:
    """Returns tags that link the runs which saved a run's sources.

    A run that the store does not have, or not yet, is linked by its directory.

    Args:
      sources: scaffold -> checkpoint.
      store: where runs are recorded.
    """
    tags = {}
    for name, checkpoint in sources.items():
        directory = run_directory(checkpoint)
        if directory is not None:
            tags[f"{SOURCE_RUN_TAG}.{name}"] = store.run_id(directory) or str(directory)
    return tags


def name_tracked_run(directory: RunDirectory, store: RunStore) -> None:
    """Adds the store's id of a run to its provenance; it is known once the run is delivered."""
    has_document = directory.provenances[0].is_file()
    document = provenance_of(str(directory.path)) if has_document else None
    if document is None:
        return
    # It is another id where the store lost the run and has recorded it again.
    document["run"]["run_id"] = store.run_id(directory.path) or document["run"].get("run_id")
    text = json.dumps(document, indent=1) + "\n"
    for file in (file for file in directory.provenances if file.parent.is_dir()):
        if not file.is_file() or file.read_text() != text:
            write_text(file, text)
