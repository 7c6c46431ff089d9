"""Addresses of tasks: whether they are well formed, free, or answer."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from runner.errors import ClusterError, Problem

# A server that lives accepts a connection at once; this bounds the wait for a silent machine.
_CONNECT_SECONDS = 2.0
# A name, an IPv4 address, or an IPv6 address in brackets.
_HOST = re.compile(r"[\w.-]+|\[[\w:.%]+\]")


def split(address: str) -> tuple[str, int] | None:
    """Returns host and port of `host:port`; None for anything else."""
    host, _, port = address.rpartition(":")
    if not (_HOST.fullmatch(host) and port.isdecimal() and 0 < int(port) < 65536):
        return None
    return host.strip("[]"), int(port)


def place(address: str) -> tuple[str, int] | str:
    """Returns what is the same for all spellings of an address, without asking a name server.

    What is no address is returned as it is.
    """
    parts = split(address)
    if parts is None:
        return address
    host, port = parts[0].lower(), parts[1]
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host, port
    # A server listens at all addresses of its machine, those of the loopback interface too.
    return ("localhost" if found.is_loopback else str(found)), port


def in_use(address: str) -> bool:
    """Whether a process of this machine listens at the address's port.

    gRPC's servers share a port silently, so that it is looked for before one is started.
    """
    parts = split(address)
    if parts is None:
        return False
    with socket.socket() as probe:
        # What remains of connections that were closed does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", parts[1]))
        except OSError as error:
            # Of any other, such as a port that only root may have, the server itself tells.
            return error.errno == errno.EADDRINUSE
    return False


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
    """Returns so many different addresses at which nobody listens."""
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
      interval: seconds between two looks.
      say: is told once for whom it waits, if for anyone.
      clock: seconds from any origin.
      sleep: waits so many seconds.

    Raises:
      ClusterError: naming those that do not answer after `limit`.
    """
    deadline = clock() + limit
    told = False
    while missing := [name for name, address in tasks.items() if not answers(address)]:
        if not told:
            say(f"waits for {_listed(tasks, missing)}, {limit:g} s at most")
            told = True
        if clock() >= deadline:
            raise ClusterError(not_answering(tasks, missing, limit))
        sleep(interval)


def not_answering(tasks: Mapping[str, str], missing: Sequence[str], limit: float) -> Problem:
    """The problem of tasks that have not come up, or not again."""
    verb = "does" if len(missing) == 1 else "do"
    return Problem(
        f"{_listed(tasks, missing)} {verb} not answer",
        f"waited for {limit:g} s (cluster.max_wait_secs); not started, not reachable, or the run "
        "has ended",
        "look at the logs of these tasks and start them again, or mend their addresses",
    )


def _listed(tasks: Mapping[str, str], names: Sequence[str]) -> str:
    """Returns some of the tasks with their addresses, in words."""
    return ", ".join(f"{name} at {tasks[name]}" for name in names)
