"""Runs in the tracking store for trials that failed before they could open one themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner.config.masking import Mask
from runner.config.schema import RunConfig
from runner.sweeps.attempt import FAILURES, Attempt, TrialStatus
from runner.sweeps.points import ComposedPoint
from runner.sweeps.sweep_directory import SweepDirectory
from runner.system.atomic_files import write_text
from runner.tracking import is_tracked, open_store
from runner.training.watch import SWEEP_TAG

_FOLDER, _RECORDED = "unopened", "attempt"
# MLflow refuses longer ones.
_TAG_LENGTH = 5000


def record_unopened(directory: SweepDirectory, composed: Sequence[ComposedPoint]) -> None:
    """Records each trial whose last attempt that was started has failed and has no run.

    A trial that so fails again, when its sweep goes on, is still one run.

    Args:
      directory: the sweep's, whose own run is open.
      composed: points of the sweep, by which the configurations of its trials are known.

    Raises:
      TrackingError: another process records them.
    """
    configs = {each.fingerprint: each.config for each in composed}
    last = {}
    for file in directory.attempts():
        attempt = file.read()
        if attempt.status is not TrialStatus.SKIPPED:
            last[attempt.trial] = (file.path.stem, attempt)
    for name, attempt in last.values():
        config = configs.get(attempt.fingerprint, composed[0].config)
        unopened = attempt.status in FAILURES and attempt.run_dir is None
        if unopened and is_tracked(config.tracking):
            _record(directory.path, name, attempt, config)


def unopened_runs(directory: Path) -> list[Path]:
    """Returns the folders of what `record_unopened` has recorded of a sweep."""
    return sorted(each for each in (directory / _FOLDER).glob("*") if each.is_dir())


def _record(directory: Path, name: str, attempt: Attempt, config: RunConfig) -> None:
    folder = directory / _FOLDER / f"{attempt.trial:04d}"
    recorded = folder / _RECORDED
    if recorded.is_file() and recorded.read_text() == name:
        return
    settings = _settings(config, attempt.values)
    mask = Mask(config.tracking.mask, settings)
    store = open_store(config.tracking, settings)
    tracker = store.open(
        folder,
        config.name,
        f"{config.name} trial {attempt.trial}",
        {"runner.overrides": " ".join(mask.overrides(attempt.overrides))},
        str(directory),
    )
    values = {key: str(mask.value(key, value)) for key, value in attempt.values.items()}
    tracker.set_tags(
        {
            **{f"{SWEEP_TAG}.{key}": value for key, value in values.items()},
            "runner.exception": attempt.message[:_TAG_LENGTH],
        }
    )
    tracker.close(attempt.status)
    write_text(recorded, name)


def _settings(config: RunConfig, values: Mapping[str, str]) -> dict[str, Any]:
    """Returns a configuration with swept values in it, in which secrets are looked for.

    What a search has drawn is in none of those that are known beforehand.
    """
    settings = asdict(config)
    for key, value in values.items():
        *parents, last = key.split(".")
        node: Any = settings
        for each in parents:
            node = node.get(each) if isinstance(node, dict) else None
        if isinstance(node, dict) and not isinstance(node.get(last), dict):
            node[last] = value
    return settings
