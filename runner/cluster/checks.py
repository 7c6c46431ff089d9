"""What in the settings of a cluster is out of range, contradictory or of no effect."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from runner.cluster.tasks import has_addresses
from runner.cluster.tf_config import LOCAL, VARIABLE, TfConfig
from runner.cluster_config import CHIEF, PS, WORKER, ClusterConfig
from runner.errors import Problem


def conflicts(cluster: ClusterConfig, tf_config: TfConfig | None) -> list[Problem]:
    """Finds where `cluster:` and `TF_CONFIG` contradict each other."""
    problems = []
    if cluster.local and has_addresses(cluster):
        problems.append(
            Problem(
                "cluster.local is true, and there are cluster.addresses",
                "the tasks of a local cluster get theirs when they are started",
                "delete cluster.addresses, or set cluster.local=false",
            )
        )
    elif cluster.local and cluster.task.type is not None and tf_config is None:
        problems.append(
            Problem(
                f"cluster.local is true, and cluster.task.type is {cluster.task.type}",
                "this process starts all tasks of a local cluster, and is none of them",
                "delete cluster.task, or set cluster.local=false and give cluster.addresses",
            )
        )
    if tf_config is None:
        return problems
    if cluster.local and tf_config.environment != LOCAL:
        problems.append(
            Problem(
                f"cluster.local is true, and {VARIABLE} is set",
                f"with {VARIABLE} this process would be one task of a cluster that exists",
                f"unset {VARIABLE}, or set cluster=none",
            )
        )
    for kind in (CHIEF, WORKER, PS):
        ours, theirs = tuple(getattr(cluster.addresses, kind)), tf_config.addresses.get(kind, ())
        if has_addresses(cluster) and ours != theirs:
            problems.append(
                Problem(
                    f"{kind}: cluster.addresses has {_listed(ours)} and {VARIABLE} "
                    f"{_listed(theirs)}",
                    "both describe the cluster, and differently",
                    f"delete one of them, or unset {VARIABLE}",
                )
            )
    task = (cluster.task.type, cluster.task.index)
    named = (tf_config.task_type, tf_config.task_index)
    if cluster.task.type is not None and task != named:
        problems.append(
            Problem(
                f"cluster.task is {task[0]} {task[1]}, and {VARIABLE} says {named[0]} {named[1]}",
                "both say which task this process is, and differently",
                f"delete one of them, or unset {VARIABLE}",
            )
        )
    return problems


def _listed(addresses: Sequence[str]) -> str:
    return ", ".join(addresses) or "none"


# What TensorFlow and the system can count in milliseconds, about 30 years.
_MOST_SECONDS = 1e9
# Key -> what to give in place of a number that is below 1, not above 0, negative, or too large.
_AT_LEAST_ONE = {
    "workers": "the chief counts: cluster.workers=1 is the chief alone",
    "ps": "cluster.ps=1 holds all variables on one server",
    "partition_bytes": "cluster.partition_bytes=null cuts no variable",
}
_ABOVE_ZERO = {
    "max_wait_secs": "the default is cluster.max_wait_secs=1800, half an hour",
    "recovery_wait_secs": "the default is cluster.recovery_wait_secs=2",
}
_NOT_NEGATIVE = {
    "grace_secs": "cluster.grace_secs=0 waits for nobody",
    "restarts": "cluster.restarts=0 starts nothing again",
    "backup": "cluster.backup=0 waits for all workers",
}
_SECONDS = {
    **_ABOVE_ZERO,
    "grace_secs": "the default is cluster.grace_secs=30",
}


def number_problems(cluster: ClusterConfig) -> list[Problem]:
    """Finds numbers that are out of range."""
    problems = []
    for keys, wrong, rule in (
        (_AT_LEAST_ONE, lambda value: value < 1, "it must be at least 1"),
        (_ABOVE_ZERO, lambda value: not value > 0, "it must be above 0"),
        (_NOT_NEGATIVE, lambda value: not value >= 0, "it must not be negative"),
        (_SECONDS, lambda value: value > _MOST_SECONDS, f"it must be at most {_MOST_SECONDS:g}"),
    ):
        for key, remedy in keys.items():
            value = getattr(cluster, key)
            if value is not None and wrong(value):
                problems.append(Problem(f"cluster.{key} is {value:g}", rule, remedy))
    return problems


# What does nothing without a cluster.
_OF_CLUSTERS = (
    *("workers", "ps", "evaluator", "synchronous", "backup", "placement", "partition_bytes"),
    "restarts",
)


def idle_problems(cluster: ClusterConfig) -> list[Problem]:
    """Finds settings of a cluster where there is none."""
    defaults = ClusterConfig()
    given = [
        f"cluster.{key} is {_spelt(getattr(cluster, key))}"
        for key in _OF_CLUSTERS
        if getattr(cluster, key) != getattr(defaults, key)
    ]
    if not given:
        return []
    return [
        Problem(
            f"{', '.join(given)}, and there is no cluster",
            "one process would train, to which this means nothing",
            f"cluster=local starts a cluster on this machine, cluster.addresses or {VARIABLE} "
            "name one; otherwise delete it",
        )
    ]


def count_problems(cluster: ClusterConfig, source: str) -> list[Problem]:
    """Finds settings of a local cluster that the tasks' addresses contradict.

    Args:
      cluster: the cluster, with addresses.
      source: what gives them.
    """
    addresses, defaults = cluster.addresses, ClusterConfig()
    problems = [
        Problem(
            f"cluster.{key} is {given}, and {source} names {count}",
            "with addresses the tasks are those that have one",
            f"delete cluster.{key}, or mend the addresses",
        )
        for key, given, default, count in (
            (
                *("workers", cluster.workers, defaults.workers),
                len(addresses.chief) + len(addresses.worker),
            ),
            ("ps", cluster.ps, defaults.ps, len(addresses.ps)),
        )
        if given not in (default, count)
    ]
    if cluster.restarts > 0 and not cluster.local:
        problems.append(
            Problem(
                f"cluster.restarts is {cluster.restarts}, and {source} names the tasks",
                "only tasks that cluster=local has started are started again by it",
                "delete cluster.restarts; whatever starts this task can start it again",
            )
        )
    return problems


def _spelt(value: object) -> object:
    return value.value if isinstance(value, Enum) else str(value).lower()
