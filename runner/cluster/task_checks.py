"""What can be wrong with the addresses of a cluster's tasks, and with this process's place."""

from __future__ import annotations

from runner.cluster.addresses import in_use, place, split
from runner.cluster.tasks import addresses_by_type
from runner.cluster.tf_config import index_problem
from runner.cluster_config import EVALUATOR, TASKS, ClusterConfig
from runner.config import Mode
from runner.errors import Problem, ranked


def address_problems(cluster: ClusterConfig, source: str) -> list[Problem]:
    """Finds addresses that are malformed, missing or given twice."""
    by_type = addresses_by_type(cluster)
    problems = [
        Problem(
            f"{source}: {kind} {index} is at {address!r}",
            "it is not an address",
            "write host:port, with a port from 1 to 65535",
        )
        for kind, hosts in by_type.items()
        for index, address in enumerate(hosts)
        if split(address) is None
    ]
    chiefs = len(cluster.addresses.chief)
    if chiefs != 1:
        problems.append(
            Problem(
                f"{source}: there {'is no chief' if not chiefs else f'are {chiefs} chiefs'}",
                "one task initialises, restores, saves and records for all",
                "give `chief` one address; that of the first worker will do, taken from there",
            )
        )
    if cluster.addresses.worker and not cluster.addresses.ps:
        problems.append(
            Problem(
                f"{source}: there are workers and no ps",
                "the variables they share are on parameter servers",
                "give `ps` at least one address; workers without any are not offered",
            )
        )
    known: dict[object, tuple[str, str]] = {}
    for kind, hosts in by_type.items():
        for index, address in enumerate(hosts):
            task = f"{kind} {index}"
            other, spelt = known.setdefault(place(address), (task, address))
            if other != task:
                also = "" if spelt == address else f", which is {address}"
                problems.append(
                    Problem(
                        f"{source}: {other} and {task} are both at {spelt}{also}",
                        "two tasks cannot share a port",
                        "give each an address of its own",
                    )
                )
    return problems


def task_problems(cluster: ClusterConfig, mode: Mode, source: str) -> list[Problem]:
    """Finds whether this process can be no task of the cluster, or not the one it is to be."""
    kind, index = cluster.task.type, cluster.task.index
    if kind is None:
        if mode is Mode.plan:
            return []
        return [
            Problem(
                "cluster.addresses are given, and no cluster.task.type",
                "each process must know which task it is",
                "for example cluster.task.type=worker cluster.task.index=0",
                TASKS,
            )
        ]
    if kind not in TASKS:
        return [
            Problem(
                f"{source}: this task is of type {kind!r}",
                "there is no such type",
                "mend the type",
                ranked(kind, TASKS),
            )
        ]
    if kind == EVALUATOR:
        return []
    hosts = addresses_by_type(cluster).get(kind, [])
    if not 0 <= index < len(hosts):
        return [index_problem(source, kind, index, len(hosts))]
    if mode is Mode.train and in_use(hosts[index]):
        return [
            Problem(
                f"{kind} {index} is to listen at {hosts[index]}, and its port is in use",
                "another process of this machine listens there, perhaps the same task still",
                "end it, or give the task another port",
            )
        ]
    return []


def lone_problems(cluster: ClusterConfig, source: str) -> list[Problem]:
    """Finds tasks besides a chief that trains alone, without parameter servers.

    Args:
      cluster: the cluster, whose only address is the chief's.
      source: what gives it.
    """
    if not (cluster.evaluator or cluster.task.type == EVALUATOR):
        return []
    return [
        Problem(
            f"{source}: there are a chief and an evaluator, and no ps",
            "they tell each other through a parameter server how training goes",
            "give `ps` an address, or leave the evaluator out: the chief evaluates by itself "
            "(train.evaluate_every)",
        )
    ]
