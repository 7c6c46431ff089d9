"""What MLflow's URIs of models mean at a moment."""

from __future__ import annotations

import re
from typing import Any, Protocol

_ALIAS = re.compile(r"models:/([^/@]+)@([^/]+)(/.*)?")
_VERSION = re.compile(r"models:/([^/@]+)/(\d+)(/.*)?")
_LATEST = re.compile(r"models:/([^/@]+)/latest(/.*)?", re.IGNORECASE)


class ModelRegistry(Protocol):
    """The part of `mlflow.MlflowClient` that knows registered models."""

    def get_model_version_by_alias(self, name: str, alias: str) -> Any:
        """Returns the version that an alias names."""

    def get_registered_model(self, name: str) -> Any:
        """Returns a model with its versions."""

    def get_model_version_download_uri(self, name: str, version: str) -> str:
        """Returns where the files of a version are."""

    def search_model_versions(self, filter_string: str) -> Any:
        """Returns the versions that a filter matches."""


def pinned(uri: str, registry: ModelRegistry) -> str:
    """Returns the URI with a version in place of `@alias` or `/latest`; others as they are.

    Raises:
      LookupError: when `latest` is asked of a model without versions.
      Exception: whatever the registry raises for a model or alias it does not know.
    """
    alias, latest = _ALIAS.fullmatch(uri), _LATEST.fullmatch(uri)
    if alias:
        version = registry.get_model_version_by_alias(alias[1], alias[2]).version
        return f"models:/{alias[1]}/{version}{alias[3] or ''}"
    if latest:
        registry.get_registered_model(latest[1])
        versions = [
            int(each.version) for each in registry.search_model_versions(f"name = '{latest[1]}'")
        ]
        if not versions:
            raise LookupError(f"the model {latest[1]} has no version")
        return f"models:/{latest[1]}/{max(versions)}{latest[2] or ''}"
    return uri


def stored(uri: str, registry: ModelRegistry) -> str:
    """Returns where the files of a model's version are; other URIs as they are.

    MLflow's own download asks the process-wide registry for them.

    Raises:
      Exception: whatever the registry raises for a version it does not know.
    """
    version = _VERSION.fullmatch(uri)
    if not version:
        return uri
    return registry.get_model_version_download_uri(version[1], version[2]) + (version[3] or "")
