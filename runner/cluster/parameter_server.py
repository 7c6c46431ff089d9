"""A parameter server: it holds variables, and ends when the chief has."""

from __future__ import annotations

import time

import tensorflow as tf

from runner.cluster.channel import left_flag, released_flag
from runner.cluster.server import start_server
from runner.cluster_config import PS
from runner.config import RunConfig
from runner.interruption import Interruption
from runner.screen import Screen

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
