"""A session whose server dies goes on from its checkpoint with the next one."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

import runner
from tests.tiny.session_events import Hook

# Waits for a line before it serves, so that a second process can be ready when the first is killed.
SERVER = """
import sys
import tensorflow.compat.v1 as tf
print("ready", flush=True)
sys.stdin.readline()
server = tf.train.Server({"worker": [sys.argv[1]]}, "worker", 0)
print("serves", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def address() -> str:
    """A free address of this machine."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


@pytest.fixture
def server(address: str) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Makes server processes; all are killed at the end."""
    with ExitStack() as stack:

        def start() -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", SERVER, address],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            stack.callback(process.kill)
            return process

        yield start


def serve(process: subprocess.Popen[str]) -> None:
    """Waits until the process can serve, and lets it."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "serves\n"


def open_session(api: Any, address: str, directory: Path, hook: Hook) -> tuple[Any, Any]:
    """Returns a session that saves at every second step, and its train op."""
    weight = tf.get_variable("weight", initializer=100.0)
    step = tf.train.get_or_create_global_step()
    with tf.control_dependencies([weight.assign_add(1.0)]):
        train_op = step.assign_add(1)
    with tf.control_dependencies([train_op]):
        values = (step.read_value(), weight.read_value())
    session = api.MonitoredTrainingSession(
        master=f"grpc://{address}",
        checkpoint_dir=str(directory),
        hooks=[hook],
        save_checkpoint_steps=2,
        save_summaries_steps=None,
        log_step_count_steps=None,
    )
    return session, values


def test_a_session_outlives_its_server(
    address: str, server: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    first, second = server(), server()
    serve(first)
    sides: dict[Any, tuple[tf.Graph, Hook, Any, Any]] = {}
    found: dict[Any, list[Any]] = {}
    for api in (tf.train, runner):
        with tf.Graph().as_default() as graph:
            hook = Hook([], "hook")
            session, values = open_session(api, address, tmp_path / api.__name__, hook)
            sides[api] = (graph, hook, session, values)
            found[api] = [session.run(values) for _ in range(3)]
    first.kill()
    first.wait()
    serve(second)
    for api, (graph, hook, session, values) in sides.items():
        with graph.as_default():
            found[api] += [session.run(values) for _ in range(2)]
            session.close()
        assert len(hook.sessions) == 2
    # The third step was not saved: it is taken again.
    assert found[tf.train] == [(1, 101.0), (2, 102.0), (3, 103.0), (3, 103.0), (4, 104.0)]
    assert found[runner] == found[tf.train]
