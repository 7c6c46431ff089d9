"""Finds the provenance that a run has left beside its checkpoints."""

from __future__ import annotations

import json
import logging
import os
import re
from typing import Any

from runner.checkpoints import files
from runner.checkpoints.reader import CheckpointSpec
from runner.restoration.provenance import SCHEMA, Origin
from runner.run_directory import PROVENANCE

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
