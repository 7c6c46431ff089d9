"""Where a run came from: its code and machine as tags, its variables' values as a document.

The document links to those of the checkpoints that the run started from.
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
from typing import Any

from runner.checkpoints import files
from runner.checkpoints.reader import CheckpointSpec
from runner.runs.run_directory import PROVENANCE
from runner.tracking.tracker import COMMAND_TAG

logger = logging.getLogger(__name__)

SCHEMA = 1
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
