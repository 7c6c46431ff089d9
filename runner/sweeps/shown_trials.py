"""The trials of a sweep as they are recorded and shown: without the secrets in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runner.sweeps.attempt import Attempt
from runner.tracking import Mask


def shown_trials(trials: Sequence[Attempt], mask: Mask) -> list[Attempt]:
    """Returns the trials with the values of secret keys masked.

    Several values of one key stay apart, as `***1` and `***2`, so that tables, bands and figures
    tell their trials apart too.
    """
    known: dict[str, list[str]] = {}
    for trial in sorted(trials, key=lambda each: each.trial):
        for key, value in trial.values.items():
            if mask.value(key, value) != value and value not in known.setdefault(key, []):
                known[key].append(value)
    return [
        replace(
            trial,
            overrides=tuple(mask.overrides(trial.overrides)),
            values={
                key: _shown(value, known.get(key, []), str(mask.value(key, value)))
                for key, value in trial.values.items()
            },
        )
        for trial in trials
    ]


def _shown(value: str, masked: Sequence[str], shown: str) -> str:
    return f"{shown}{masked.index(value) + 1}" if len(masked) > 1 and value in masked else shown
