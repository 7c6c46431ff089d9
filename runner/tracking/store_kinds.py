"""The table of the stores that runs can be recorded in.

Another kind of store takes a module with a `Destination` and an entry in `STORE_KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.config.schema import TrackingConfig
from runner.errors import TrackingError
from runner.tracking.address import address_of
from runner.tracking.destination import Destination
from runner.tracking.tracking_directory import RunIdentity, TrackingDirectory


class ParentMissingError(TrackingError):
    """The store does not have the parent run yet, in which the run is to be opened."""


@dataclass(frozen=True)
class StoreKind:
    """A kind of store.

    Attributes:
      uri: returns the URI of the store that a configuration names; None when it names none.
      settings: returns the configuration keys that name the store at a URI, or none at None.
      connect: opens a run at a URI, by its directory and identity. It imports the store's library,
        and may raise anything.
      location: returns the place of a run in the store at a URI, for display.
    """

    uri: Callable[[TrackingConfig], str | None]
    settings: Callable[[str | None], dict[str, object]]
    connect: Callable[[TrackingDirectory, str, RunIdentity], Destination]
    location: Callable[[TrackingDirectory, str], str]


def mlflow_uri(config: TrackingConfig) -> str | None:
    """Returns MLflow's tracking URI, absolute; None when nothing is recorded there.

    Raises:
      TrackingUriError: the URI is malformed, or of a kind that MLflow does not offer.
    """
    if config.uri is None or config.uri.lower() == "none":
        return None
    return address_of(config.uri, Path.cwd()).uri


def _connect_mlflow(directory: TrackingDirectory, uri: str, identity: RunIdentity) -> Destination:
    # Importing MLflow takes seconds.
    from runner.tracking.mlflow_store import MlflowStore

    store = MlflowStore(uri)
    parent_id = None
    if identity.parent is not None:
        parent = TrackingDirectory(Path(identity.parent))
        # The store may have been moved or copied with the run directories.
        parent_id = parent.position(uri).run_id or store.id_of(parent.identity())
        if parent_id is None:
            raise ParentMissingError.of(
                f"run {identity.run_name!r} cannot be opened yet",
                f"it is a part of the one in {identity.parent}, which the store does not have",
                f"see {parent.log}, or deliver that: runner sync {identity.parent}",
            )
    run = store.find_or_create(identity, directory.position(uri).run_id, parent_id)
    if identity.system_metrics and directory.is_written():
        run.monitor()
    return run


def _mlflow_location(directory: TrackingDirectory, uri: str) -> str:
    address, position = address_of(uri, Path.cwd()), directory.position(uri)
    if position.run_id is None:
        return f"{address.shown} (not delivered yet)"
    if address.is_server:
        return address.page(position.run_id, position.experiment_id)
    return f"{address.shown}, run {position.run_id}"


def _connect_event_files(
    directory: TrackingDirectory, uri: str, identity: RunIdentity
) -> Destination:
    # Importing TensorFlow takes seconds.
    from runner.tracking.event_files import EventFiles

    return EventFiles(directory.tensorboard)


MLFLOW = StoreKind(
    uri=mlflow_uri,
    settings=lambda uri: {"tracking.uri": uri},
    connect=_connect_mlflow,
    location=_mlflow_location,
)

STORE_KINDS: Mapping[str, StoreKind] = {
    "mlflow": MLFLOW,
    "tensorboard": StoreKind(
        uri=lambda config: "tensorboard:" if config.tensorboard else None,
        settings=lambda uri: {"tracking.tensorboard": uri is not None},
        connect=_connect_event_files,
        location=lambda directory, uri: f"event files in {directory.tensorboard}",
    ),
}
"""Scheme of a URI -> kind of store. Schemes that are not listed, such as `sqlite`, are MLflow's."""


def kind_of_store(uri: str) -> StoreKind:
    """Returns the kind of a store's URI."""
    return STORE_KINDS.get(uri.partition(":")[0], MLFLOW)


def configured_uris(config: TrackingConfig) -> tuple[str, ...]:
    """Returns the URIs of the stores that a configuration names.

    Raises:
      TrackingUriError: a URI is malformed, or of a kind that its store does not offer.
    """
    uris = (kind.uri(config) for kind in STORE_KINDS.values())
    return tuple(uri for uri in uris if uri is not None)


def recorded_settings(uris: Sequence[str]) -> dict[str, object]:
    """Returns the configuration keys that name the stores at `uris`, with their values."""
    settings: dict[str, object] = {}
    for kind in STORE_KINDS.values():
        uri = next((uri for uri in uris if kind_of_store(uri) is kind), None)
        settings |= kind.settings(uri)
    return settings
