"""MLflow URIs of checkpoints, downloaded once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from runner.checkpoint_uris import MLFLOW_SCHEMES
from runner.checkpoints.local_copy import cached

_CONTENT, _PATH = "content", "path"


class Artifacts(Protocol):
    """The part of an MLflow store that holds files."""

    @property
    def store(self) -> str:
        """The store's address, by which equal URIs of two stores are told apart."""

    def pin(self, uri: str) -> str:
        """Returns the URI of what `uri` means now, e.g. a version for a model's alias.

        Raises:
          RunnerError: when there is no such model or run.
        """

    def download(self, uri: str, folder: str) -> str:
        """Copies an artifact into a folder and returns the path of the copy.

        Raises:
          RunnerError: when it cannot be downloaded.
        """


def is_mlflow_uri(checkpoint: str) -> bool:
    """Whether `checkpoint` is `runs:/...`, `models:/...` or `mlflow-artifacts:...`."""
    return checkpoint.startswith(MLFLOW_SCHEMES)


def downloaded(uri: str, artifacts: Artifacts) -> str:
    """Returns the path of an artifact's copy in the cache, downloading it the first time.

    An alias such as `models:/name@champion` is looked up every time, so that it is followed when
    it moves.

    Raises:
      RunnerError: when the artifact is not there.
    """
    pinned = artifacts.pin(uri)

    def fill(folder: Path) -> None:
        content = folder / _CONTENT
        content.mkdir()
        path = artifacts.download(pinned, str(content))
        (folder / _PATH).write_text(os.path.relpath(path, content))

    folder = cached(f"{artifacts.store} {pinned}", fill)
    return os.path.normpath(folder / _CONTENT / (folder / _PATH).read_text())
