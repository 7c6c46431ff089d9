"""The tasks of a cluster: which there are, where, and which this process is."""

from __future__ import annotations

from runner.cluster_config import CHIEF, EVALUATOR, PS, TASKS, WORKER, ClusterConfig
from runner.config import Mode, RunConfig


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
