"""Gives a run what it needs besides its configuration; a sweep extends a class to watch it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.console import Screen

SWEEP_TAG = "runner.sweep"
"""Prefix of the tags with the swept values of a trial."""


class TrialWatch:
    """Watches a run's evaluations and may end it; by default does neither.

    Attributes:
      parent: directory of the tracked run that this run is part of; None outside sweeps.
      tags: `runner.sweep.KEY` -> swept value.
      pruned: whether the loop is to end because other trials are better.
    """

    parent: str | None = None
    tags: Mapping[str, str] = {}
    pruned: bool = False

    def name(self, container: Path) -> str:
        """Returns what identifies the trial below the configured `run_dir`; empty for no trial."""
        return ""

    def started(self, run_dir: Path) -> None:
        """Takes the run's directory, once there is one."""

    def evaluated(self, metrics: Mapping[str, float], step: int) -> None:
        """Takes the metrics of an evaluation, after which `pruned` may be true."""

    def check(self, objective: float) -> None:
        """Raises `PrunedRunError` if the trial is pruned, and `SweepError` if it is a failure."""


@dataclass(frozen=True)
class RunContext:
    """The things that a command gives to a run besides its configuration.

    Attributes:
      overrides: the command line's overrides, recorded with the run.
      from_run_dir: whether `run_dir` is itself the run to evaluate or export, and `config` its
        recorded configuration.
      ends_command: whether the command has nothing to do after this run, so that signals are
        ignored from then on.
      print_next_commands: whether the run's last lines suggest commands that evaluate, export or
        resume it; False for sources and trials.
      keeps_process: whether no signal ends the process, as a notebook's has more to lose than the
        run.
      screen: where to print; by default standard output.
      watch: the trial of a sweep that the run is.
    """

    overrides: Sequence[str] = ()
    from_run_dir: bool = False
    ends_command: bool = False
    print_next_commands: bool = False
    keeps_process: bool = False
    screen: Screen = field(default_factory=Screen)
    watch: TrialWatch = field(default_factory=TrialWatch)
