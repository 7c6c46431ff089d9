"""The tasks of a cluster: `TF_CONFIG`, their addresses, and which of them this process is."""

from __future__ import annotations

import errno
import json
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from runner.config.choices import Mode
from runner.config.schema import (
    CHIEF,
    EVALUATOR,
    PS,
    TASKS,
    WORKER,
    ClusterConfig,
    ClusterMode,
    RunConfig,
)
from runner.errors import ConfigError, Problem, ranked

VARIABLE = "TF_CONFIG"
# What older scripts call the chief.
MASTER = "master"
# The `environment` of tasks that were started by `cluster.local`.
LOCAL = "runner-local"

_EXAMPLE = (
    '{"cluster": {"chief": ["host:2222"], "worker": [...], "ps": [...]}, '
    '"task": {"type": "worker", "index": 0}}'
)


@dataclass
class Addresses:
    """The tasks of a cluster by type, each as `host:port`; an evaluator has no address.

    Attributes:
      chief: the chief, which trains, saves and records; at most one.
      worker: the other tasks that train.
      ps: the parameter servers, which hold the variables.
    """

    chief: list[str] = field(default_factory=list)
    worker: list[str] = field(default_factory=list)
    ps: list[str] = field(default_factory=list)


@dataclass
class Task:
    """The task of a cluster that a process is.

    Attributes:
      type: `chief`, `worker`, `ps` or `evaluator`.
      index: its position among the tasks of its type, from 0.
    """

    type: str = CHIEF
    index: int = 0


@dataclass
class Cluster(ClusterConfig):
    """A configured cluster with what `TF_CONFIG` says: all tasks, and the one of this process."""

    addresses: Addresses = field(default_factory=Addresses)
    task: Task = field(default_factory=Task)


def addresses_of(cluster: ClusterConfig) -> Addresses:
    """Returns the addresses of the tasks; none where `TF_CONFIG` names no cluster."""
    return cluster.addresses if isinstance(cluster, Cluster) else Addresses()


def task_of(cluster: ClusterConfig) -> Task:
    """Returns the task of this process, by default the chief."""
    return cluster.task if isinstance(cluster, Cluster) else Task()


def configured(cluster: ClusterConfig) -> ClusterConfig:
    """Returns a cluster without what `TF_CONFIG` says."""
    return ClusterConfig(**{key.name: getattr(cluster, key.name) for key in fields(ClusterConfig)})


def read_tf_config(environ: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster that `TF_CONFIG` describes; None if it is not set or names none.

    `master` is read as `chief`. Without either the first worker is the chief, as in TensorFlow, and
    the others are counted from there: worker 1 becomes worker 0. `local` is true in a task that
    `cluster.local` has started.

    Raises:
      ConfigError: with every part of it that is not in the documented form.
    """
    text = environ.get(VARIABLE, "").strip() or "{}"
    try:
        content = json.loads(text)
    except ValueError as error:
        raise _malformed(f"{VARIABLE} is {text!r}", f"it is not JSON: {error}") from error
    if not isinstance(content, Mapping):
        raise _malformed(f"{VARIABLE} is {text!r}", "it is not a JSON object")
    hosts, task = content.get("cluster", {}), content.get("task", {})
    if not isinstance(hosts, Mapping):
        raise _malformed(f"{VARIABLE}: cluster is {hosts!r}", "it is not a JSON object")
    if not hosts:
        if not isinstance(task, Mapping) or not _trains_alone(task):
            state = f"{VARIABLE} names the task {json.dumps(task)}, but no cluster"
            raise _malformed(state, "the task cannot find the others")
        return None
    if not isinstance(task, Mapping) or task.get("type") is None:
        raise _malformed(f"{VARIABLE} names no task", "each process must know which task it is")
    if CHIEF in hosts and MASTER in hosts:
        raise _malformed(f"{VARIABLE} names a chief and a master", "they are one task")
    hosts = {CHIEF if kind == MASTER else kind: addresses for kind, addresses in hosts.items()}
    problems = list(_malformed_parts(hosts, task))
    if problems:
        raise ConfigError(*problems)
    # An evaluator takes no part in the cluster, and needs no address.
    evaluators = hosts.pop(EVALUATOR, ())
    chief, workers = list(hosts.get(CHIEF, ())), list(hosts.get(WORKER, ()))
    kind, index = str(task["type"]), int(task.get("index", 0))
    if workers and not chief:
        chief, workers = workers[:1], workers[1:]
        if kind == WORKER:
            kind, index = (WORKER, index - 1) if index else (CHIEF, 0)
    return Cluster(
        local=content.get("environment") == LOCAL,
        addresses=Addresses(chief, workers, list(hosts.get(PS, ()))),
        task=Task(CHIEF if kind == MASTER else kind, index),
        evaluator=bool(evaluators),
    )


def _malformed_parts(hosts: Mapping[str, Any], task: Mapping[str, Any]) -> Iterator[Problem]:
    for kind, addresses in hosts.items():
        if kind not in TASKS:
            yield Problem(
                f"{VARIABLE}: cluster.{kind} is no type of task",
                "it is misspelt, or belongs elsewhere",
                choices=ranked(kind, TASKS),
            )
        elif not (isinstance(addresses, list) and all(isinstance(host, str) for host in addresses)):
            state = f"{VARIABLE}: cluster.{kind} is {addresses!r}"
            yield Problem(state, "it must be a list of addresses")
        elif kind == EVALUATOR and len(addresses) > 1:
            yield _several(f"there are {len(addresses)} evaluators")
    # Platforms add keys of their own, such as `trial`, and write numbers as strings.
    index = task.get("index", 0)
    if "index" not in task and task["type"] in (WORKER, PS):
        yield Problem(
            f"{VARIABLE}: task.index is missing",
            f"it tells which {task['type']} this process is",
            "set it to the position of the task's address, counted from 0",
        )
    elif not re.fullmatch(r"-?\d{1,9}", str(index)):
        yield Problem(f"{VARIABLE}: task.index is {index!r}", "it must be a whole number")
    elif task["type"] == EVALUATOR and int(index) != 0:
        yield _several(f"this task is evaluator {index}")


def _several(state: str) -> Problem:
    return Problem(
        f"{VARIABLE}: {state}",
        "each evaluator would evaluate every checkpoint, and record the same metrics",
        "give `evaluator` one address, or none, and its task the index 0",
    )


def _trains_alone(task: Mapping[str, Any]) -> bool:
    """Whether a task without a cluster is the only one."""
    alone = (CHIEF, MASTER, WORKER)
    return task.get("type", WORKER) in alone and str(task.get("index", 0)) == "0"


def _malformed(state: str, cause: str) -> ConfigError:
    return ConfigError.of(state, cause, f"write {_EXAMPLE}")


def write_tf_config(
    addresses: Mapping[str, tuple[str, ...]], task_type: str, task_index: int
) -> str:
    """Returns the value of `TF_CONFIG` for a task of a cluster on this machine."""
    return json.dumps(
        {
            "cluster": {kind: list(hosts) for kind, hosts in addresses.items()},
            "task": {"type": task_type, "index": task_index},
            "environment": LOCAL,
        }
    )


def has_addresses(cluster: ClusterConfig) -> bool:
    """Whether the tasks' addresses are known."""
    addresses = addresses_of(cluster)
    return bool(addresses.chief or addresses.worker or addresses.ps)


def is_cluster(cluster: ClusterConfig) -> bool:
    """Whether training is to be spread over several processes."""
    return cluster.local or has_addresses(cluster)


def is_task(cluster: ClusterConfig, *types: str) -> bool:
    """Whether this process is a task of a cluster, and of one of `types` if there are any."""
    return has_addresses(cluster) and task_of(cluster).type in (types or TASKS)


def is_collective(cluster: ClusterConfig) -> bool:
    """Whether every task holds all variables, and there are no parameter servers."""
    return cluster.mode is ClusterMode.collective


def launches(config: RunConfig) -> bool:
    """Whether this process only starts the tasks of a cluster on this machine."""
    return config.cluster.local and not has_addresses(config.cluster) and config.mode is Mode.train


def replica_index(cluster: ClusterConfig) -> int:
    """Returns the index of this process among those that train; the chief is 0."""
    task = task_of(cluster)
    return task.index + 1 if task.type == WORKER else 0


def trainers(cluster: ClusterConfig) -> dict[str, str]:
    """Returns the tasks that train with their addresses, the chief first."""
    addresses = addresses_of(cluster)
    tasks = {f"{WORKER} {index}": address for index, address in enumerate(addresses.worker)}
    return {CHIEF: addresses.chief[0], **tasks} if addresses.chief else tasks


def servers(cluster: ClusterConfig) -> dict[str, str]:
    """Returns the tasks that the others begin with, with their addresses.

    Those are the parameter servers or, in mode `collective`, the chief. The first holds what tasks
    announce.
    """
    if is_collective(cluster):
        return {CHIEF: addresses_of(cluster).chief[0]}
    return parameter_servers(cluster)


def needed_tasks(cluster: ClusterConfig) -> dict[str, str]:
    """Returns the tasks without which this one cannot take a step, with their addresses.

    Those are the parameter servers or, in mode `collective`, the others that train.
    """
    if not is_collective(cluster):
        return parameter_servers(cluster)
    here = trainer_name(cluster)
    return {name: address for name, address in trainers(cluster).items() if name != here}


def trainer_name(cluster: ClusterConfig) -> str:
    """Returns the name of this process among `trainers`."""
    task = task_of(cluster)
    return f"{WORKER} {task.index}" if task.type == WORKER else CHIEF


def parameter_servers(cluster: ClusterConfig) -> dict[str, str]:
    """Returns the parameter servers with their addresses."""
    return {f"{PS} {index}": address for index, address in enumerate(addresses_of(cluster).ps)}


def addresses_by_type(cluster: ClusterConfig) -> dict[str, list[str]]:
    """Returns type of task -> addresses, as `tf.train.ClusterSpec` takes them."""
    return {kind: list(hosts) for kind, hosts in vars(addresses_of(cluster)).items() if hosts}


def announcing_tasks(cluster: ClusterConfig) -> list[str]:
    """Returns the names under which the chief records the metrics of other tasks."""
    workers = [f"{WORKER}{index}" for index in range(len(addresses_of(cluster).worker))]
    return workers + [EVALUATOR] * cluster.evaluator


def announced_name(cluster: ClusterConfig) -> str:
    """Returns the name of this process among `announcing_tasks`."""
    task = task_of(cluster)
    return EVALUATOR if task.type == EVALUATOR else f"{task.type}{task.index}"


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


def answers(address: str) -> bool:
    """Returns whether a process listens at the address."""
    parts = split(address)
    if parts is None:
        return False
    try:
        with socket.create_connection(parts, timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


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
