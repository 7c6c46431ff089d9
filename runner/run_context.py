"""What a command gives to each part of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.config import RunConfig
from runner.screen import Screen
from runner.sources import Sources
from runner.tracking import RunStore


@dataclass(frozen=True)
class RunContext:
    """What is asked for, and with what it is done.

    Attributes:
      config: the validated configuration.
      sources: the checkpoints that it names.
      store: where runs are recorded.
      screen: where to print.
      overrides: the command line's overrides, recorded with the run.
      parent: directory of the tracked run that this one is a part of, such as a sweep.
      dedicated: whether `run_dir` was given for this run; an interrupted run in it with another
        warm start is then refused, where otherwise a new run is made beside it.
    """

    config: RunConfig
    sources: Sources
    store: RunStore
    screen: Screen
    overrides: Sequence[str] = ()
    parent: str | None = None
    dedicated: bool = False
