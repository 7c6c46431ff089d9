"""The `tracking` folder of a run directory: the run's identity, its journal and its deliveries."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from runner.system.atomic_files import relative_path, resolve_moved, write_json
from runner.system.locks import is_held
from runner.system.run_format import FORMAT, require_format
from runner.system.status import Status
from runner.tracking.journal import read_lines, segments

# A process that checks whether the writer is alive holds its lock for an instant.
_CLAIM_SECONDS = 10.0


def now() -> int:
    """Returns the present time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class RunIdentity:
    """Identity of a run, and the stores to record it in.

    Attributes:
      uid: identifies the run in every store, chosen before the store knows it.
      experiment: name of the experiment that the run belongs to.
      run_name: the run's display name.
      tags: its first tags.
      parent: run directory of the parent run, such as a sweep.
      stores: URIs; MLflow's are absolute, and `tensorboard:` is event files beside the journal.
      system_metrics: whether the load of the machine is recorded in MLflow too.
      patience_seconds: how long delivery is retried without success once the run has ended.
      ended: the final status of a run that is only added to.
      start_time: when it was first opened, in milliseconds since the epoch.
    """

    uid: str
    experiment: str
    run_name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None
    stores: tuple[str, ...] = ()
    system_metrics: bool = False
    patience_seconds: float = 60.0
    ended: str | None = None
    start_time: int | None = None


@dataclass
class Position:
    """How far a journal has been delivered to one store.

    Attributes:
      run_id: the store's id of the run; None before it is created.
      experiment_id: the store's id of the experiment.
      segment: number of the segment that is being delivered; 0 before the first.
      offset: bytes of it that the store has acknowledged.
      status: the status of the run in the store.
      ended: the final status of the run, as far as the journal has been read.
      lost: records that did not reach the journal, or are damaged in it.
      end_time: when the run ended, in milliseconds since the epoch; None if unknown.
      last_time: when the run last recorded a metric, in milliseconds since the epoch.
      given_up: when the delivery was last given up, in milliseconds since the epoch.
    """

    run_id: str | None = None
    experiment_id: str | None = None
    segment: int = 0
    offset: int = 0
    status: str | None = None
    ended: str | None = None
    lost: int = 0
    end_time: int | None = None
    last_time: int | None = None
    given_up: int = 0


class TrackingDirectory:
    """The `tracking` folder of a run directory."""

    def __init__(self, run_directory: Path) -> None:
        self.run_directory = run_directory
        self.path = run_directory / "tracking"
        self._writer = FileLock(self.path / "writer.lock")

    @property
    def journal(self) -> Path:
        """The folder of the journal's segments."""
        return self.path / "journal"

    @property
    def log(self) -> Path:
        """The follower's log."""
        return self.path / "follower.log"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard's event files."""
        return self.run_directory / "tensorboard"

    def store(self, uri: str) -> Path:
        """Returns the folder of the deliveries to one store."""
        digest = hashlib.sha256(uri.encode()).hexdigest()[:8]
        return self.path / f"{uri.partition(':')[0]}-{digest}"

    def delivery_lock(self, uri: str) -> FileLock:
        """Returns the lock of the one process that delivers to a store; it is not thread-local."""
        self.store(uri).mkdir(parents=True, exist_ok=True)
        return FileLock(self.store(uri) / "lock", thread_local=False)

    def identity(self) -> RunIdentity | None:
        """Returns the run's identity, or None when nothing was ever recorded here.

        Raises:
          RunDirectoryError: when it is of another format.
        """
        file = self.path / "identity.json"
        content = _read(file)
        if content is None:
            return None
        require_format(content, file)
        del content["format"]
        relative = content.pop("parent_from_here")
        parent = resolve_moved(content["parent"], relative, self.run_directory)
        return RunIdentity(**{**content, "parent": parent, "stores": tuple(content["stores"])})

    def write_identity(self, identity: RunIdentity) -> None:
        """Replaces the identity; only the user may read it, because URIs hold passwords."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        relative = relative_path(identity.parent, self.run_directory)
        content = {"format": FORMAT, **asdict(identity), "parent_from_here": relative}
        write_json(self.path / "identity.json", content)

    def position(self, uri: str) -> Position:
        """Returns how far the journal has been delivered to a store."""
        content = _read(self.store(uri) / "position.json")
        return Position(**content) if content else Position()

    def write_position(self, uri: str, position: Position) -> None:
        """Replaces the position in an atomic write."""
        write_json(self.store(uri) / "position.json", asdict(position))

    def is_delivered(self) -> bool:
        """Whether every store has the status of the run, and all that is in its journal."""
        identity = self.identity()
        return identity is not None and all(map(self._has_all, identity.stores))

    def is_pending(self, since: int) -> bool:
        """Whether a delivery is in progress, or still due because it was not given up.

        `since` is in milliseconds since the epoch; what was given up before it is due again.
        """
        identity = self.identity()
        return identity is not None and any(
            (self.position(uri).given_up < since and not self._has_all(uri))
            or is_held(self.store(uri) / "lock")
            for uri in identity.stores
        )

    def _has_all(self, uri: str) -> bool:
        position = self.position(uri)
        if position.status in (None, Status.RUNNING.value):
            return False
        if position.ended not in (None, position.status):
            return False
        return all(
            segment.number == position.segment
            and not any(read_lines(segment.path, position.offset))
            for segment in segments(self.journal)[-1:]
        )

    def claim(self) -> None:
        """Makes this process the writer, until it ends or calls `release`.

        Raises:
          filelock.Timeout: another process writes.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._writer.acquire(timeout=_CLAIM_SECONDS)

    def release(self) -> None:
        """Makes this process stop being the writer."""
        self._writer.release()

    def is_written(self) -> bool:
        """Returns whether the writer is alive."""
        return is_held(self.path / "writer.lock")


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return content
