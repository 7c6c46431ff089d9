"""What can be wrong with the description of a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from runner.cluster.addresses import in_use, split
from runner.cluster.tasks import addresses_by_type, has_addresses
from runner.cluster.tf_config import CHIEF, EVALUATOR, LOCAL, PS, TASKS, VARIABLE, WORKER, TfConfig
from runner.cluster_config import ClusterConfig
from runner.config import Mode, NonFinite, RunConfig
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


def number_problems(cluster: ClusterConfig) -> list[Problem]:
    """Finds numbers that are out of range."""
    problems = [
        Problem(f"cluster.{key} is {value}", "it must be at least 1")
        for key, value in (
            ("workers", cluster.workers),
            ("ps", cluster.ps),
            ("partition_bytes", cluster.partition_bytes),
        )
        if value is not None and value < 1
    ]
    problems += [
        Problem(f"cluster.{key} is {value:g}", "it must be above 0")
        for key, value in (
            ("max_wait_secs", cluster.max_wait_secs),
            ("recovery_wait_secs", cluster.recovery_wait_secs),
        )
        if not value > 0
    ]
    problems += [
        Problem(f"cluster.{key} is {value:g}", "it must not be negative")
        for key, value in (
            ("grace_secs", cluster.grace_secs),
            ("restarts", cluster.restarts),
            ("backup", cluster.backup),
        )
        if value < 0
    ]
    return problems


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
    if cluster.backup and not cluster.synchronous:
        problems.append(
            Problem(
                f"cluster.backup is {cluster.backup}, and cluster.synchronous is false",
                "without synchronous updates nobody waits for anybody",
                "cluster.synchronous=true, or cluster.backup=0",
            )
        )
    elif cluster.backup >= workers:
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
                "give `ps` at least one address",
            )
        )
    known: dict[str, str] = {}
    for kind, hosts in by_type.items():
        for index, address in enumerate(hosts):
            task = f"{kind} {index}"
            if address in known:
                problems.append(
                    Problem(
                        f"{source}: {known[address]} and {task} are both at {address}",
                        "two tasks cannot share a port",
                        "give each an address of its own",
                    )
                )
            known.setdefault(address, task)
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
        return [
            Problem(
                f"{source}: this task is {kind} {index}, and there "
                f"{'is' if len(hosts) == 1 else 'are'} {len(hosts) or 'none'} of that type",
                "its index is that of its address, counted from 0",
                "mend the index, or add the task's address",
                tuple(f"{kind} {each}" for each in range(len(hosts))),
            )
        ]
    if mode is Mode.train and in_use(hosts[index]):
        return [
            Problem(
                f"{kind} {index} is to listen at {hosts[index]}, and its port is in use",
                "another process of this machine listens there, perhaps the same task still",
                "end it, or give the task another port",
            )
        ]
    return []
