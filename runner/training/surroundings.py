"""What a run meets outside itself: a sweep that watches it, tasks that it trains with.

By default there is neither. `runner.sweeps` extends `TrialWatch` and `runner.cluster` extends
`Coordinator`; nothing in a run imports those rooms.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

from runner.console import Screen
from runner.graph.replica import Replica
from runner.session.session_creators import ChiefSessionCreator
from runner.tracking import FollowerProcess
from runner.training.watch import TrialWatch

if TYPE_CHECKING:
    from runner.training.run import Run

_Hooks: TypeAlias = Sequence[tf.compat.v1.train.SessionRunHook]


class Coordinator:
    """What the run's process does for other tasks that train the model; this one knows of none.

    Attributes:
      replica: this process's copy of the graph.
      others_train: whether other tasks change the weights while this one evaluates.
    """

    replica: Replica = Replica()
    others_train: bool = False

    def begun(self) -> None:
        """Reports that the run is begun or resumed."""

    def is_over(self, run: Run) -> bool:
        """Whether an earlier process has trained the run to its end, and only that is to record."""
        return False

    def session_creator(self, run: Run, **arguments: Any) -> ChiefSessionCreator:
        """Returns the creator of the run's sessions; the arguments are those of its class."""
        settings = run.config.session
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=settings.intra_op_threads,
            inter_op_parallelism_threads=settings.inter_op_threads,
        )
        return ChiefSessionCreator(config=config, **arguments)

    def hooks(self, run: Run) -> tuple[_Hooks, _Hooks]:
        """Returns the hooks that come before and after all others."""
        return (), ()

    def leading(self, run: Run) -> AbstractContextManager[object]:
        """Surrounds the run's session."""
        return nullcontext()


@dataclass(frozen=True)
class Surroundings:
    """What a command gives to a run besides its configuration.

    Attributes:
      overrides: the command line's overrides, recorded with the run.
      dedicated: whether `run_dir` was given for this run; an interrupted run in it with another
        warm start is then refused, where otherwise a new run is made beside it.
      screen: where to print; by default standard output.
      follower: a process started ahead that delivers what the run records.
      watch: the trial of a sweep that the run is.
      coordinator: leads the other tasks of a cluster.
    """

    overrides: Sequence[str] = ()
    dedicated: bool = False
    screen: Screen = field(default_factory=Screen)
    follower: FollowerProcess | None = None
    watch: TrialWatch = field(default_factory=TrialWatch)
    coordinator: Coordinator = field(default_factory=Coordinator)
