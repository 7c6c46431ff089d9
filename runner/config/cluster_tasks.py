"""The tasks of a cluster: which there are, where, and which this process is."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from runner.config.choices import Mode
from runner.config.schema import CHIEF, EVALUATOR, PS, TASKS, WORKER, ClusterConfig, RunConfig
from runner.errors import ClusterError, Problem


def has_addresses(cluster: ClusterConfig) -> bool:
    """Whether the tasks' addresses are known."""
    return bool(cluster.addresses.chief or cluster.addresses.worker or cluster.addresses.ps)


def is_cluster(cluster: ClusterConfig) -> bool:
    """Whether training is to be spread over several processes."""
    return cluster.local or has_addresses(cluster)


def is_task(cluster: ClusterConfig, *types: str) -> bool:
    """Whether this process is a task of a cluster, of one of the types if any are given."""
    return has_addresses(cluster) and cluster.task.type in (types or TASKS)


def launches(config: RunConfig) -> bool:
    """Whether this process only starts the tasks of a cluster on this machine."""
    return config.cluster.local and not has_addresses(config.cluster) and config.mode is Mode.train


def replica_index(cluster: ClusterConfig) -> int:
    """Returns the place of this process among those that train; the chief is the first."""
    return cluster.task.index + 1 if cluster.task.type == WORKER else 0


def trainers(cluster: ClusterConfig) -> dict[str, str]:
    """Returns the tasks that train with their addresses, the chief first."""
    found = dict(zip((CHIEF,), cluster.addresses.chief, strict=False))
    return found | {f"{WORKER} {i}": each for i, each in enumerate(cluster.addresses.worker)}


def parameter_servers(cluster: ClusterConfig) -> dict[str, str]:
    """Returns the parameter servers with their addresses."""
    return {f"{PS} {index}": each for index, each in enumerate(cluster.addresses.ps)}


def addresses_by_type(cluster: ClusterConfig) -> dict[str, list[str]]:
    """Returns what `tf.train.ClusterSpec` takes."""
    addresses = cluster.addresses
    found = {CHIEF: addresses.chief, WORKER: addresses.worker, PS: addresses.ps}
    return {each: list(hosts) for each, hosts in found.items() if hosts}


def telling_tasks(cluster: ClusterConfig) -> list[str]:
    """Returns the tasks that send the chief their metrics, by the name these are recorded under."""
    workers = [f"{WORKER}{index}" for index in range(len(cluster.addresses.worker))]
    return workers + [EVALUATOR] * cluster.evaluator


def own_name(cluster: ClusterConfig) -> str:
    """Returns the name of this process among `telling_tasks`."""
    if cluster.task.type == EVALUATOR:
        return EVALUATOR
    return f"{cluster.task.type}{cluster.task.index}"


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
