"""Addresses of the tasks of a cluster: free ones, and whether a process answers there."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from runner.config.cluster_spec import split
from runner.errors import ClusterError, Problem

# A live server accepts a connection at once; this bounds the wait for a silent machine.
_CONNECT_SECONDS = 2.0


def answers(address: str) -> bool:
    """Whether a process listens at the address."""
    parts = split(address)
    if parts is None:
        return False
    try:
        with socket.create_connection(parts, timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


def free_addresses(count: int, host: str = "127.0.0.1") -> list[str]:
    """Returns `count` different addresses at which no process listens."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [f"{host}:{probe.getsockname()[1]}" for probe in probes]


def wait_until_answering(
    tasks: Mapping[str, str],
    limit: float,
    interval: float,
    *,
    say: Callable[[str], None] = lambda line: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until every task answers.

    Args:
      tasks: task, such as `ps 0` -> its address.
      limit: seconds to wait at most.
      interval: seconds between two checks.
      say: is called once with the tasks it waits for, if any.
      clock: returns seconds from any origin.
      sleep: waits a number of seconds.

    Raises:
      ClusterError: naming those that do not answer after `limit`.
    """
    deadline = clock() + limit
    said = False
    while missing := [name for name, address in tasks.items() if not answers(address)]:
        if not said:
            say(f"waits for {_listed(tasks, missing)}, {limit:g} s at most")
            said = True
        if clock() >= deadline:
            raise ClusterError(not_answering(tasks, missing, limit))
        sleep(interval)


def not_answering(tasks: Mapping[str, str], missing: Sequence[str], limit: float) -> Problem:
    """Returns the problem of tasks that have not started, or not restarted."""
    verb = "does" if len(missing) == 1 else "do"
    return Problem(
        f"{_listed(tasks, missing)} {verb} not answer",
        f"waited for {limit:g} s (cluster.max_wait_secs); not started, not reachable, or the run "
        "has ended",
        "look at the logs of these tasks and restart them, or fix their addresses",
    )


def _listed(tasks: Mapping[str, str], names: Sequence[str]) -> str:
    """Returns the named tasks with their addresses, in words."""
    return ", ".join(f"{name} at {tasks[name]}" for name in names)
