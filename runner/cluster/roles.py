"""What a process does as a task of a cluster that is not the chief."""

from __future__ import annotations

import time
from collections.abc import Callable

import tensorflow as tf

from runner.cluster.channel import left_flag, released_flag
from runner.cluster.evaluator import follow_checkpoints
from runner.cluster.server import start_server
from runner.cluster.worker import run_worker
from runner.config.schema import EVALUATOR, PS, WORKER, RunConfig
from runner.console import Screen
from runner.system.signals import Interruption

_LOOK_SECONDS = 0.5


def serve(config: RunConfig, screen: Screen) -> None:
    """Serves until the chief lets it end.

    A signal may have come to all tasks, and the chief needs the variables to save them: the server
    then serves on until the chief has left, or its own `session.grace_seconds` are nearly over. A
    second signal ends it at once.

    Raises:
      ConfigError: when it cannot listen at its address.
      InterruptedRunError: after a signal.
    """
    index = config.cluster.task.index
    with Interruption(config.session.grace_seconds).handled() as interruption:
        server = start_server(config)
        own = tf.compat.v1.ConfigProto(device_filters=[f"/job:{PS}/task:{index}"])
        with tf.Graph().as_default():
            values = (released_flag(index).value, left_flag(index).value)
            screen.line("serves")
            with (
                interruption.deferred(),
                tf.compat.v1.Session(server.target, config=own) as session,
            ):
                told = False
                # Joining the server would neither end nor heed a signal.
                while True:
                    released, left = session.run(values)
                    if released:
                        break
                    if is_over(interruption.remaining(), left=left):
                        interruption.check()
                    if interruption.received() and not told:
                        screen.line("serves on after a signal, until the chief has left")
                        told = True
                    time.sleep(_LOOK_SECONDS)
    screen.line("done")


def is_over(remaining: float | None, *, left: bool) -> bool:
    """Whether a server that is not released ends.

    Args:
      remaining: seconds that are left of its grace period; None before a signal.
      left: whether the chief has left, to go on later.
    """
    return remaining is not None and (left or remaining <= 2 * _LOOK_SECONDS)


_ROLES: dict[str | None, Callable[[RunConfig, Screen], None]] = {
    PS: serve,
    WORKER: run_worker,
    EVALUATOR: follow_checkpoints,
}


def run_task(config: RunConfig, screen: Screen | None = None) -> None:
    """Does what the configuration's `cluster.task` says.

    Args:
      config: the configuration with its cluster resolved.
      screen: where to print; by default standard output.

    Raises:
      RunnerError: see the functions of each role.
    """
    _ROLES[config.cluster.task.type](config, screen or Screen())
