"""Says which task of a cluster the creation of a session waits for.

Without device filters, TensorFlow creates a session only once every task of the cluster answers. It
says so in its own log alone, which many programs silence.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from runner.internals.tensorflow import servers_in_process

_LOGGER = logging.getLogger(__name__)

# Seconds of waiting before the first message and between two.
PATIENCE_S = 10.0


@contextmanager
def waits_reported(master: str, config: tf.compat.v1.ConfigProto | None) -> Iterator[None]:
    """Logs, for as long as the block waits, which tasks of the cluster do not answer.

    Args:
      master: the target of the session; a session of this process alone waits for no other.
      config: the session's configuration, whose device filters may leave tasks out.
    """
    if not master:
        yield
        return
    done = threading.Event()
    watch = threading.Thread(target=_report, args=(master, config, done), daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()


def _report(master: str, config: tf.compat.v1.ConfigProto | None, done: threading.Event) -> None:
    while not done.wait(PATIENCE_S):
        silent = [task for task, address in _tasks(master, config) if not _answers(address)]
        if silent and not done.is_set():
            _LOGGER.warning(
                "The session at %s waits for tasks that do not answer: %s. It starts once every "
                "task of the cluster answers, except those that device filters leave out: "
                "tf.compat.v1.ConfigProto(device_filters=['/job:ps', '/job:worker/task:0']) waits "
                "for the parameter servers and the first worker.",
                master,
                ", ".join(silent),
            )


def _tasks(master: str, config: tf.compat.v1.ConfigProto | None) -> Iterator[tuple[str, str]]:
    """Yields the names and addresses of the tasks that a session waits for."""
    filters = (
        [tf.DeviceSpec.from_string(device) for device in config.device_filters] if config else []
    )
    for server in servers_in_process():
        if server.target != tf.compat.as_str(master):
            continue
        for job in server.server_def.cluster.job:
            for index, address in job.tasks.items():
                if not filters or any(
                    part.job in (None, job.name) and part.task in (None, index) for part in filters
                ):
                    yield f"/job:{job.name}/task:{index} ({address})", address


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
    except OSError:
        return False
    return True
