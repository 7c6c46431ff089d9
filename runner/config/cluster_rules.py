"""What in the settings of a cluster is out of range, contradictory or of no effect."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from runner.config.choices import Mode, NonFinite
from runner.config.cluster_tasks import addresses_by_type, has_addresses, in_use, place, split
from runner.config.schema import CHIEF, EVALUATOR, PS, TASKS, WORKER, ClusterConfig, RunConfig
from runner.config.tf_config import LOCAL, VARIABLE, TfConfig, index_problem
from runner.errors import Problem, ranked


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


def training_problems(config: RunConfig, cluster: ClusterConfig) -> list[Problem]:
    """Finds what cannot be done by several processes."""
    problems = []
    if config.train.non_finite.action is NonFinite["rollback"]:
        problems.append(
            Problem(
                "train.non_finite.action is rollback, in a cluster",
                "the other workers would go on with the values that were not finite",
                "train.non_finite.action=raise; with cluster.restarts the run goes back itself",
            )
        )
    if config.model.get("jit_compile"):
        problems.append(
            Problem(
                "model.jit_compile is true, in a cluster",
                "XLA compiles what is in one process, and the variables are in others",
                "delete model.jit_compile",
            )
        )
    workers = 1 + len(cluster.addresses.worker) if has_addresses(cluster) else cluster.workers
    averaged = config.train.ema_decay is not None and config.train.evaluate_ema
    if averaged and workers > 1 and not cluster.synchronous:
        problems.append(
            Problem(
                f"train.ema_decay is {config.train.ema_decay:g} with train.evaluate_ema, and "
                f"{workers} workers train",
                "while the chief evaluates, the averages are in the weights' place on the servers, "
                "and the other workers would train them",
                "train.evaluate_ema=false evaluates the weights; or train.ema_decay=null",
            )
        )
    if cluster.backup > 0 and not cluster.synchronous:
        problems.append(
            Problem(
                f"cluster.backup is {cluster.backup}, and cluster.synchronous is false",
                "without synchronous updates nobody waits for anybody",
                "cluster.synchronous=true, or cluster.backup=0",
            )
        )
    elif cluster.backup >= workers > 0:
        problems.append(
            Problem(
                f"cluster.backup is {cluster.backup}, and {workers} workers train",
                "an update needs the gradient of one worker at least",
                f"at most cluster.backup={workers - 1}",
            )
        )
    return problems + (_synchronous_problems(config) if cluster.synchronous else [])


def _synchronous_problems(config: RunConfig) -> list[Problem]:
    cause = "synchronous updates are made by one optimizer, at one place"
    problems = [
        Problem(
            f"scaffolds.{name} has a schedule of its own, and cluster.synchronous is true",
            cause,
            f"delete freeze_until_step and learning_rate_multiplier of scaffolds.{name}, or set "
            "cluster.synchronous=false",
        )
        for name, scaffold in config.scaffolds.items()
        if scaffold.freeze_until_step or scaffold.learning_rate_multiplier != 1.0
    ]
    if config.model.get("dtype_policy") == "mixed_float16":
        problems.append(
            Problem(
                "model.dtype_policy is mixed_float16, and cluster.synchronous is true",
                f"each worker would scale its loss differently, and {cause}",
                "model.dtype_policy=mixed_bfloat16, or cluster.synchronous=false",
            )
        )
    if config.train.ema_decay is not None:
        problems.append(
            Problem(
                f"train.ema_decay is {config.train.ema_decay:g}, and cluster.synchronous is true",
                f"every worker would move the averages at each update, and {cause}",
                "train.ema_decay=null, or cluster.synchronous=false",
            )
        )
    return problems
