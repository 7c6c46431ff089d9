"""The tasks of a cluster: `TF_CONFIG`, their addresses, and which of them this process is."""

from __future__ import annotations

import errno
import json
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from runner.config.choices import Mode
from runner.config.schema import CHIEF, EVALUATOR, PS, TASKS, WORKER, ClusterConfig, RunConfig
from runner.errors import ClusterError, ConfigError, Problem, ranked

VARIABLE = "TF_CONFIG"
# What older scripts call the chief.
MASTER = "master"
# The `environment` of tasks that were started by `cluster.local`.
LOCAL = "runner-local"

_EXAMPLE = (
    '{"cluster": {"chief": ["host:2222"], "worker": [...], "ps": [...]}, '
    '"task": {"type": "worker", "index": 0}}'
)


@dataclass(frozen=True)
class TfConfig:
    """The content of `TF_CONFIG`.

    Attributes:
      addresses: chief, worker, ps -> `host:port` of each of its tasks.
      task_type: the type of this process's task.
      task_index: its index among the tasks of its type.
      environment: who started the task; any string.
      evaluators: the addresses of evaluators, which take no part in the cluster.
    """

    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    task_type: str = ""
    task_index: int = 0
    environment: str = ""
    evaluators: tuple[str, ...] = ()


def read_tf_config(environ: Mapping[str, str]) -> TfConfig | None:
    """Returns the content of `TF_CONFIG`; None where it is not set or names no cluster.

    `master` is read as `chief`. Without either the first worker is the chief, as TensorFlow has it,
    and the others are counted from there: worker 1 becomes worker 0.

    Raises:
      ConfigError: with everything that is not in its documented form.
    """
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            Problem(f"{VARIABLE} is {text!r}", f"it is not JSON: {error}", f"write {_EXAMPLE}")
        ) from error
    if not isinstance(content, Mapping):
        raise ConfigError(
            Problem(f"{VARIABLE} is {text!r}", "it is not a JSON object", f"write {_EXAMPLE}")
        )
    cluster = content.get("cluster")
    if not cluster:
        return None
    problems: list[Problem] = []
    addresses = _addresses(cluster, problems)
    task_type, task_index = _task(content.get("task"), problems)
    if len(addresses.get(EVALUATOR, ())) > 1:
        problems.append(
            Problem(
                f"{VARIABLE}: there are {len(addresses[EVALUATOR])} evaluators",
                "each would evaluate every checkpoint, and record the same metrics",
                "give `evaluator` one address, or none",
            )
        )
    headless = not addresses.get(CHIEF) and bool(addresses.get(WORKER))
    # Checked here: these are left out or renumbered below.
    uncounted = (EVALUATOR, WORKER) if headless else (EVALUATOR,)
    count = len(addresses.get(task_type, ()))
    if task_type in uncounted and count and not 0 <= task_index < count:
        problems.append(index_problem(VARIABLE, task_type, task_index, count))
    if problems:
        raise ConfigError(*problems)
    if headless:
        first, *others = addresses[WORKER]
        addresses = {**addresses, CHIEF: (first,), WORKER: tuple(others)}
        if task_type == WORKER:
            task_type, task_index = (WORKER, task_index - 1) if task_index else (CHIEF, 0)
    evaluators = addresses.pop(EVALUATOR, ())
    environment = str(content.get("environment", ""))
    return TfConfig(addresses, task_type, task_index, environment, evaluators)


def write_tf_config(
    addresses: Mapping[str, tuple[str, ...]], task_type: str, task_index: int
) -> str:
    """Returns the value of `TF_CONFIG` for a task of a cluster on this machine."""
    return json.dumps(
        {
            "cluster": {each: list(hosts) for each, hosts in addresses.items()},
            "task": {"type": task_type, "index": task_index},
            "environment": LOCAL,
        }
    )


def _addresses(cluster: Any, problems: list[Problem]) -> dict[str, tuple[str, ...]]:
    if not isinstance(cluster, Mapping):
        problems.append(
            Problem(
                f"{VARIABLE}: cluster is {cluster!r}",
                "it is not an object of task types, each with a list of addresses",
                f"write {_EXAMPLE}",
            )
        )
        return {}
    if MASTER in cluster and CHIEF in cluster:
        problems.append(
            Problem(
                f"{VARIABLE}: cluster has a {MASTER} and a {CHIEF}",
                f"{MASTER} is the old name of the {CHIEF}",
                f"delete {MASTER}",
            )
        )
    found = {}
    for given, hosts in cluster.items():
        kind = CHIEF if given == MASTER else given
        if kind not in TASKS:
            problems.append(
                Problem(
                    f"{VARIABLE}: cluster has tasks of type {given!r}",
                    "there is no such type",
                    "rename or delete them",
                    ranked(str(given), TASKS),
                )
            )
        elif not isinstance(hosts, list) or not all(isinstance(each, str) for each in hosts):
            problems.append(
                Problem(
                    f"{VARIABLE}: cluster.{given} is {hosts!r}",
                    "it is not a list of addresses",
                    f'for example {{"{given}": ["host:2222"]}}',
                )
            )
        else:
            found[kind] = tuple(hosts)
    return found


def _task(task: Any, problems: list[Problem]) -> tuple[str, int]:
    if not isinstance(task, Mapping) or "type" not in task:
        problems.append(
            Problem(
                f"{VARIABLE} names no task",
                "each process must know which one it is",
                f"write {_EXAMPLE}",
                TASKS,
            )
        )
        return "", 0
    kind = str(task["type"])
    kind = CHIEF if kind == MASTER else kind
    index = task.get("index", 0)
    try:
        if isinstance(index, float) and not index.is_integer():
            raise ValueError(index)
        return kind, int(index)
    except (TypeError, ValueError):
        problems.append(
            Problem(
                f"{VARIABLE}: task.index is {index!r}",
                "it is not a whole number",
                "count the tasks of each type from 0",
            )
        )
        return kind, 0


def index_problem(source: str, kind: str, index: int, count: int) -> Problem:
    """Returns the problem of a task, named by `source`, whose index is not below `count`."""
    return Problem(
        f"{source}: this task is {kind} {index}, and there "
        f"{'is' if count == 1 else 'are'} {count or 'none'} of that type",
        "its index is that of its address, counted from 0",
        "fix the index, or add the task's address",
        tuple(f"{kind} {each}" for each in range(count)),
    )


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
    """Returns the index of this process among those that train; the chief is 0."""
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


def announcing_tasks(cluster: ClusterConfig) -> list[str]:
    """Returns the names under which the chief records the metrics of other tasks."""
    workers = [f"{WORKER}{index}" for index in range(len(cluster.addresses.worker))]
    return workers + [EVALUATOR] * cluster.evaluator


def own_name(cluster: ClusterConfig) -> str:
    """Returns the name of this process among `announcing_tasks`."""
    if cluster.task.type == EVALUATOR:
        return EVALUATOR
    return f"{cluster.task.type}{cluster.task.index}"


# A live server accepts a connection at once; this bounds the wait for a silent machine.
_CONNECT_SECONDS = 2.0
# A name, an IPv4 address, or an IPv6 address in brackets.
_HOST = re.compile(r"[\w.-]+|\[[\w:.%]+\]")


def split(address: str) -> tuple[str, int] | None:
    """Returns host and port of `host:port`; None for anything else."""
    host, _, port = address.rpartition(":")
    if not (_HOST.fullmatch(host) and port.isdecimal() and 0 < int(port) < 65536):
        return None
    return host.strip("[]"), int(port)


def in_use(address: str) -> bool:
    """Whether a process of this machine listens at the address's port.

    gRPC's servers share a port silently, so that this is checked before one is started.
    """
    parts = split(address)
    if parts is None:
        return False
    with socket.socket() as probe:
        # The remains of closed connections do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", parts[1]))
        except OSError as error:
            # The server itself reports any other, such as a port that only root may have.
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
