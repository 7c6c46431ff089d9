"""Finds and downloads the checkpoints that MLflow keeps."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException

from runner.errors import CheckpointError, Problem

_ALIAS = re.compile(r"models:/(?P<name>[^@/]+)@(?P<alias>[^/]+)(?P<rest>/.*)?")
_LATEST = re.compile(r"models:/(?P<name>[^@/]+)/latest(?P<rest>/.*)?")
_VERSION = re.compile(r"models:/(?P<name>[^@/]+)/(?P<version>\d+)(?P<rest>/.*)?")


class MlflowArtifacts:
    """The files in an MLflow store.

    Attributes:
      store: the tracking URI.
    """

    def __init__(self, tracking_uri: str, client: MlflowClient | None = None) -> None:
        """Stores its arguments; nothing is contacted yet.

        Args:
          tracking_uri: the store's address, also that of its model registry.
          client: a client of the store, if there is one.
        """
        self.store = tracking_uri
        self._known_client = client

    def pin(self, uri: str) -> str:
        """Returns `uri` with a model's version in place of an alias or `latest`.

        Raises:
          CheckpointError: when there is no such model or alias.
        """
        alias, latest = _ALIAS.fullmatch(uri), _LATEST.fullmatch(uri)
        if alias:
            with self._explained(uri):
                found = self._client().get_model_version_by_alias(alias["name"], alias["alias"])
            return f"models:/{alias['name']}/{found.version}{alias['rest'] or ''}"
        if latest:
            with self._explained(uri):
                name = latest["name"]
                versions = self._client().search_model_versions(f"name = '{name}'")
                if not versions:
                    raise MlflowException(f"there is no version of a model called {name}")
            newest = max(int(each.version) for each in versions)
            return f"models:/{name}/{newest}{latest['rest'] or ''}"
        return uri

    def download(self, uri: str, folder: str) -> str:
        """Copies an artifact into `folder` and returns the path of the copy.

        Args:
          uri: as `pin` returns it.
          folder: an existing, empty folder.

        Raises:
          CheckpointError: when there is no such artifact.
        """
        # A bar on standard error; what the user has set stays.
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        version = _VERSION.fullmatch(uri)
        with self._explained(uri):
            source = uri
            if version:
                # Asked of this store's own registry; MLflow's function asks the global one.
                name, number = version["name"], version["version"]
                source = self._client().get_model_version_download_uri(name, number)
                source += version["rest"] or ""
            return str(
                download_artifacts(artifact_uri=source, dst_path=folder, tracking_uri=self.store)
            )

    def _client(self) -> MlflowClient:
        if self._known_client is None:
            self._known_client = MlflowClient(self.store, self.store)
        return self._known_client

    @contextmanager
    def _explained(self, uri: str) -> Iterator[None]:
        try:
            yield
        except (MlflowException, OSError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise CheckpointError(
                Problem(
                    f"{uri} cannot be downloaded",
                    lines[0],
                    "mend the URI, or name in tracking.uri the store that has it",
                )
            ) from error
