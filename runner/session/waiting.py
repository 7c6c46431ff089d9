"""Says which task of a cluster the creation of a session waits for.

Without device filters, TensorFlow creates a session only once every task of the cluster answers. It
says so in its own log alone, which many programs silence.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from runner.config.cluster_spec import answers
from runner.internals.tensorflow import servers_in_process

_LOGGER = logging.getLogger(__name__)

# Seconds of waiting before the first message and between two.
PATIENCE_S = 10.0


@contextmanager
def waits_reported(
    master: str, config: tf.compat.v1.ConfigProto | None, *, for_chief: bool = False
) -> Iterator[None]:
    """Logs, for as long as the block waits, which tasks of the cluster do not answer.

    Args:
      master: the target of the session; a session of this process alone waits for no other.
      config: the session's configuration, whose device filters may leave tasks out.
      for_chief: whether the block waits for the chief too, which makes the model ready.
    """
    if not master:
        yield
        return
    done = threading.Event()
    watch = threading.Thread(target=_report, args=(master, config, for_chief, done), daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()


def _report(
    master: str,
    config: tf.compat.v1.ConfigProto | None,
    for_chief: bool,
    done: threading.Event,
) -> None:
    while not done.wait(PATIENCE_S):
        silent = [task for task, address in _tasks(master, config) if not answers(address)]
        if done.is_set():
            return
        if not silent and for_chief:
            _LOGGER.warning(
                "The session at %s waits for the chief, which has not made the model ready: it "
                "initializes or restores every variable.",
                master,
            )
        elif silent:
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
    master = tf.compat.as_str(master)
    servers = [server for server in servers_in_process() if server.target == master]
    if not servers and master.startswith("grpc://"):
        # Which tasks it waits for, only that server knows.
        address = master.removeprefix("grpc://")
        yield f"the server at {address}", address
    for server in servers:
        here = (server.server_def.job_name, server.server_def.task_index)
        for job in server.server_def.cluster.job:
            for index, address in job.tasks.items():
                needed = not filters or any(
                    part.job in (None, job.name) and part.task in (None, index) for part in filters
                )
                if needed and (job.name, index) != here:  # A local server's own port is 0 there.
                    yield f"/job:{job.name}/task:{index} ({address})", address
