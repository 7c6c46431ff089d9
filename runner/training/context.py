"""What a command gives to each part of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.config.schema import RunConfig
from runner.console import Screen
from runner.sweeps.trial import Trial
from runner.tracking import RunStore
from runner.training.sources import Sources


@dataclass(frozen=True)
class RunContext:
    """What is asked for, and with what it is done.

    Attributes:
      config: the validated configuration.
      sources: the checkpoints that it names.
      store: where runs are recorded.
      screen: where to print.
      overrides: the command line's overrides, recorded with the run.
      trial: the sweep's trial that this run is, which is told how it goes.
      dedicated: whether `run_dir` was given for this run; an interrupted run in it with another
        warm start is then refused, where otherwise a new run is made beside it.
    """

    config: RunConfig
    sources: Sources
    store: RunStore
    screen: Screen
    overrides: Sequence[str] = ()
    trial: Trial | None = None
    dedicated: bool = False
