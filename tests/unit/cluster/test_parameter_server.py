"""A parameter server holds the variables for as long as the chief needs them."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Callable

import pytest
import tensorflow as tf
from rich.console import Console

from runner.cluster.channel import Flag, left_flag, released_flag
from runner.cluster.roles import is_over, serve
from runner.cluster.server import remote_config
from runner.config.cluster_spec import free_addresses
from runner.config.schema import AddressesConfig, ClusterConfig, TaskConfig
from runner.console import Screen
from runner.errors import InterruptedRunError
from tests.tiny.configs import tiny
from tests.tiny.runs import wait_for


@pytest.mark.parametrize(
    ("remaining", "left", "over"),
    [
        (None, True, False),
        (20.0, False, False),
        (20.0, True, True),
        (0.5, False, True),
    ],
)
def test_a_server_ends_when_a_signal_has_come_and_the_chief_or_its_time_is_gone(
    remaining: float | None, left: bool, over: bool
) -> None:
    assert is_over(remaining, left=left) == over


def served(flag: Callable[[int], Flag]) -> list[str]:
    """Serves in this thread, while another sends a signal and then sets a flag; returns lines."""
    file = io.StringIO()
    chief, server = free_addresses(2)
    cluster = ClusterConfig(
        addresses=AddressesConfig([chief], [], [server]), task=TaskConfig("ps", 0)
    )

    def disturb() -> None:
        wait_for(lambda: "serves\n" in file.getvalue())
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: "after a signal" in file.getvalue())
        with tf.Graph().as_default():
            told = flag(0).set
            with tf.compat.v1.Session(f"grpc://{server}", config=remote_config()) as session:
                session.run(told)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        serve(tiny(cluster=cluster), Screen(Console(file=file)))
    finally:
        thread.join()
    return file.getvalue().splitlines()


def test_a_server_serves_on_after_a_signal_until_the_chief_has_left() -> None:
    with pytest.raises(InterruptedRunError, match="ended by SIGTERM"):
        served(left_flag)


def test_a_server_that_is_released_after_a_signal_has_done_all() -> None:
    assert served(released_flag) == [
        "serves",
        "serves on after a signal, until the chief has left",
        "done",
    ]
