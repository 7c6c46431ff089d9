"""Identifies a run by the part of its configuration that decides its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from enum import Enum
from typing import Any

from runner.config import RunConfig

EXPERIMENT = "experiment:"
# What a user may change without asking for another result.
_ELSEWHERE = (
    "mode",
    "resume",
    "run_dir",
    "plan",
    "export",
    "session",
    "tracking",
    "checkpoint",
    "sweep",
    "cluster",
)
_ELSEWHERE_IN_TRAIN = ("log_every", "checkpoint_every", "keep_checkpoints")


def settings(config: RunConfig, source_fingerprint: Callable[[str], str]) -> dict[str, Any]:
    """Returns the configuration as plain values, without what does not decide the result.

    Args:
      config: the validated configuration.
      source_fingerprint: scaffold name -> fingerprint of the experiment that its checkpoint names;
        asked only for checkpoints that begin with `experiment:`.
    """
    plain = {key: value for key, value in asdict(config).items() if key not in _ELSEWHERE}
    for key in _ELSEWHERE_IN_TRAIN:
        del plain["train"][key]
    if config.cluster.synchronous:
        # Not where the tasks are, nor how many: a run may go on with more of them.
        plain["cluster"] = {"synchronous": True}
    for name, scaffold in plain["scaffolds"].items():
        checkpoint = scaffold["checkpoint"]
        if checkpoint and checkpoint.startswith(EXPERIMENT):
            scaffold["checkpoint"] = f"{checkpoint}@{source_fingerprint(name)}"
    plain_values: dict[str, Any] = json.loads(json.dumps(plain, default=_spelling))
    return plain_values


def fingerprint(plain: dict[str, Any]) -> str:
    """Returns 16 hexadecimal digits that differ when any of the settings differs.

    The order of keys does not count, but for that of the scaffolds, which are applied in order.
    """
    text = json.dumps([list(plain["scaffolds"]), plain], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _spelling(value: Any) -> str:
    return str(value.value if isinstance(value, Enum) else value)
