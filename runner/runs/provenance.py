"""Where every variable's value came from, as a document that links to those of its sources."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner.checkpoints import files
from runner.checkpoints.reader import CheckpointSpec
from runner.runs.run_directory import PROVENANCE

SCHEMA = 1


@dataclass(frozen=True)
class Origin:
    """A checkpoint that a source was resolved to.

    Attributes:
      checkpoint: as the configuration names it.
      path: what it was resolved to.
      step: the global step it was saved at; None when it holds none.
      digest: of its content.
      run: `run` of the provenance beside it, or {`run_id`} of a `runs:/` URI; None when unknown.
      provenance: the document beside it; None when there is none.
    """

    checkpoint: str
    path: str
    step: int | None
    digest: str
    run: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] | None = None


def chain(found: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yields lines that say where a checkpoint's variables came from, back to the first source."""
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


logger = logging.getLogger(__name__)

_RUN_URI = re.compile(r"runs:/+([^/]+)(/.*)?")


def origin(checkpoint: str, path: str, spec: CheckpointSpec) -> Origin:
    """Returns what is known of where a checkpoint comes from.

    Args:
      checkpoint: as the configuration names it.
      path: what it was resolved to.
      spec: its spec.
    """
    found = provenance_of(path)
    uri = _RUN_URI.fullmatch(checkpoint)
    run = found["run"] if found else {"run_id": uri[1]} if uri else None
    if found and uri and found["run"].get("run_id") is None:
        # It was kept with the run before its name in MLflow was known.
        run = {**found["run"], "run_id": uri[1]}
        found = {**found, "run": run}
    return Origin(checkpoint, path, spec.step, spec.digest, run, found)


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
