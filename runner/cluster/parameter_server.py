"""A parameter server: it holds variables, and ends when the chief has."""

from __future__ import annotations

import time

import tensorflow as tf

from runner.cluster.channel import Channel
from runner.cluster.server import start_server
from runner.cluster_config import PS
from runner.config import RunConfig
from runner.interruption import Interruption
from runner.screen import Screen

_LOOK_SECONDS = 0.5


def serve(config: RunConfig, screen: Screen) -> None:
    """Serves until the chief lets it end.

    Raises:
      ConfigError: when it cannot listen at its address.
      InterruptedRunError: after a signal.
    """
    index = config.cluster.task.index
    with Interruption(config.session.grace_seconds).handled() as interruption:
        server = start_server(config)
        own = tf.compat.v1.ConfigProto(device_filters=[f"/job:{PS}/task:{index}"])
        with tf.Graph().as_default():
            released = Channel.released(index).value
            screen.line("serves")
            with tf.compat.v1.Session(server.target, config=own) as session:
                # Joining the server would neither end nor heed a signal.
                while not session.run(released):
                    interruption.check()
                    time.sleep(_LOOK_SECONDS)
    screen.line("done")
