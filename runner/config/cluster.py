"""Which cluster a configuration and `TF_CONFIG` describe together, and what in it contradicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from enum import Enum

from runner.config.choices import Mode, NonFinite
from runner.config.cluster_spec import (
    VARIABLE,
    addresses_by_type,
    has_addresses,
    in_use,
    index_problem,
    is_cluster,
    is_task,
    read_tf_config,
    split,
    trainers,
)
from runner.config.schema import (
    CHIEF,
    EVALUATOR,
    TASKS,
    AddressesConfig,
    ClusterConfig,
    RunConfig,
    TaskConfig,
)
from runner.errors import ConfigError, Problem, ranked


def resolve(config: RunConfig, environ: Mapping[str, str]) -> RunConfig:
    """Returns the configuration with the cluster that it and `TF_CONFIG` describe together.

    Where there is one, `cluster.addresses` and `cluster.task` then name it and this process, and
    `cluster.workers` and `cluster.ps` count its tasks. A chief alone is not a cluster.

    Raises:
      ConfigError: with every mistake in them.
    """
    cluster = config.cluster
    tf_config = read_tf_config(environ)
    if config.mode not in (Mode.train, Mode.plan):
        _require_chief(config.mode, (tf_config or cluster).task)
        return config
    problems = list(_conflicts(cluster, tf_config))
    if tf_config is not None:
        if problems:
            raise ConfigError(*problems)
        cluster = replace(
            cluster,
            addresses=tf_config.addresses,
            task=tf_config.task,
            evaluator=cluster.evaluator or tf_config.evaluator,
        )
    alone = bool(cluster.addresses.chief) and not (cluster.addresses.worker or cluster.addresses.ps)
    if is_cluster(cluster) and not alone:
        problems += _training_problems(config, cluster)
    if has_addresses(cluster):
        source = VARIABLE if tf_config else "cluster.addresses"
        problems += _address_problems(cluster, source)
        problems += _task_problems(cluster, config.mode, VARIABLE if tf_config else "cluster.task")
        problems += _count_problems(cluster, source)
    elif not cluster.local:
        problems += _idle_problems(cluster)
    if problems:
        raise ConfigError(*problems)
    if alone:
        cluster = replace(cluster, addresses=AddressesConfig(), task=TaskConfig())
    return replace(config, cluster=_counted(cluster))


def resolve_trial(config: RunConfig, environ: Mapping[str, str]) -> RunConfig:
    """Returns what `resolve` does for a trial of a sweep.

    Raises:
      ConfigError: also where this process is a task of a cluster, because each task would sweep.
    """
    found = resolve(config, environ)
    if is_task(found.cluster):
        task = found.cluster.task
        raise ConfigError(
            Problem(
                f"this process is {task.type} {task.index} of a cluster, and is to sweep",
                "each task would sweep by itself, and no trial would have all of its tasks",
                "cluster=local starts a cluster for each trial; on several machines start each "
                "trial as a run of its own",
            )
        )
    return found


def _require_chief(mode: Mode, task: TaskConfig) -> None:
    """Raises ConfigError where this is one of several tasks that would all do the same."""
    if task.type not in (None, CHIEF):
        raise ConfigError(
            Problem(
                f"mode is {mode.value}, and this process is {task.type} {task.index} of a cluster",
                "one process does that alone, and every task would repeat it",
                f"start mode={mode.value} in the chief alone, or unset {VARIABLE} and cluster.task",
            )
        )


def _counted(cluster: ClusterConfig) -> ClusterConfig:
    """Returns the cluster with its tasks counted from the addresses, if there are any."""
    if not has_addresses(cluster):
        return cluster
    return replace(
        cluster,
        workers=len(trainers(cluster)),
        ps=len(cluster.addresses.ps),
        evaluator=cluster.evaluator or cluster.task.type == EVALUATOR,
    )


def _conflicts(cluster: ClusterConfig, tf_config: ClusterConfig | None) -> Iterator[Problem]:
    """Finds where `cluster:` and `TF_CONFIG` contradict each other."""
    if cluster.local and has_addresses(cluster):
        yield Problem(
            "cluster.local is true, and there are cluster.addresses",
            "the tasks of a local cluster are given theirs when they are started",
            "delete cluster.addresses, or set cluster.local=false",
        )
    elif cluster.local and cluster.task.type is not None and tf_config is None:
        yield Problem(
            f"cluster.local is true, and cluster.task.type is {cluster.task.type}",
            "this process starts all tasks of a local cluster, and is not one of them",
            "delete cluster.task, or set cluster.local=false and give cluster.addresses",
        )
    if tf_config is None:
        return
    if cluster.local and not tf_config.local:
        yield Problem(
            f"cluster.local is true, and {VARIABLE} is set",
            f"with {VARIABLE} this process would be one task of a cluster that exists",
            f"unset {VARIABLE}, or set cluster=none",
        )
    for key in ("addresses", "task"):
        ours, theirs = getattr(cluster, key), getattr(tf_config, key)
        if ours not in (theirs, getattr(ClusterConfig(), key)):
            yield Problem(
                f"cluster.{key} and {VARIABLE} contradict each other",
                f"one has {asdict(ours)} and the other {asdict(theirs)}",
                f"delete one of them, or unset {VARIABLE}",
            )


# Keys that have no effect without a cluster.
_OF_CLUSTERS = (
    *("workers", "ps", "evaluator", "synchronous", "backup", "placement", "partition_bytes"),
    "restarts",
)


def _idle_problems(cluster: ClusterConfig) -> Iterator[Problem]:
    """Finds settings of a cluster, or a task of it, where there is no cluster."""
    kind, defaults = cluster.task.type, ClusterConfig()
    if kind is not None:
        yield Problem(
            f"cluster.task.type is {kind}, and there are no addresses",
            "a task must know where the others are",
            "set cluster.addresses.chief, .worker and .ps, or TF_CONFIG",
            () if kind in TASKS else ranked(kind, TASKS),
        )
        return
    given = {key: getattr(cluster, key) for key in _OF_CLUSTERS}
    changed = [
        f"cluster.{key} is {value.value if isinstance(value, Enum) else str(value).lower()}"
        for key, value in given.items()
        if value != getattr(defaults, key)
    ]
    if changed:
        yield Problem(
            f"{', '.join(changed)}, and there is no cluster",
            "one process would train, to which this means nothing",
            f"cluster=local starts a cluster on this machine, cluster.addresses or {VARIABLE} "
            "name one; otherwise delete it",
        )


def _count_problems(cluster: ClusterConfig, source: str) -> Iterator[Problem]:
    """Finds settings of a local cluster that the tasks' addresses, from `source`, contradict."""
    counts = {"workers": len(trainers(cluster)), "ps": len(cluster.addresses.ps)}
    for key, count in counts.items():
        given = getattr(cluster, key)
        if given not in (getattr(ClusterConfig(), key), count):
            yield Problem(
                f"cluster.{key} is {given}, and {source} names {count}",
                "with addresses the tasks are those that have one",
                f"delete cluster.{key}, or fix the addresses",
            )
    if cluster.restarts > 0 and not cluster.local:
        yield Problem(
            f"cluster.restarts is {cluster.restarts}, and {source} names the tasks",
            "cluster=local restarts only the tasks that it has started",
            "delete cluster.restarts; whatever starts this task can restart it",
        )


def _address_problems(cluster: ClusterConfig, source: str) -> Iterator[Problem]:
    """Finds addresses that are malformed, missing or given twice."""
    located = [
        (f"{kind} {index}", address)
        for kind, hosts in addresses_by_type(cluster).items()
        for index, address in enumerate(hosts)
    ]
    for task, address in located:
        if split(address) is None:
            yield Problem(
                f"{source}: {task} is at {address!r}",
                "it is not an address",
                "write host:port, with a port from 1 to 65535",
            )
    chiefs = len(cluster.addresses.chief)
    if chiefs != 1:
        yield Problem(
            f"{source}: there {'is no chief' if not chiefs else f'are {chiefs} chiefs'}",
            "one task initialises, restores, saves and records for all",
            "give `chief` one address; it may be that of the first worker, moved from there",
        )
    if cluster.addresses.worker and not cluster.addresses.ps:
        yield Problem(
            f"{source}: there are workers and no ps",
            "the variables they share are on parameter servers",
            "give `ps` at least one address; workers without any are not supported",
        )
    evaluated = cluster.evaluator or cluster.task.type == EVALUATOR
    if evaluated and set(addresses_by_type(cluster)) == {CHIEF}:
        yield Problem(
            f"{source}: there are a chief and an evaluator, and no ps",
            "they communicate through a parameter server",
            "give `ps` an address, or leave the evaluator out: the chief evaluates by itself "
            "(train.evaluate_every)",
        )
    known: dict[str, str] = {}
    for task, address in located:
        other = known.setdefault(address.lower(), task)
        if other != task:
            yield Problem(
                f"{source}: {other} and {task} are both at {address}",
                "two tasks cannot share a port",
                "give each an address of its own",
            )


def _task_problems(cluster: ClusterConfig, mode: Mode, source: str) -> Iterator[Problem]:
    """Finds whether this process can be the task that it is to be."""
    kind, index = cluster.task.type, cluster.task.index
    hosts = addresses_by_type(cluster).get(kind or "", [])
    if kind is None and mode is not Mode.plan:
        yield Problem(
            "cluster.addresses are given, and no cluster.task.type",
            "each process must know which task it is",
            "for example cluster.task.type=worker cluster.task.index=0",
            TASKS,
        )
    elif kind is not None and kind not in TASKS:
        yield Problem(
            f"{source}: this task is of type {kind!r}",
            "there is no such type",
            "fix the type",
            ranked(kind, TASKS),
        )
    elif kind in (None, EVALUATOR):
        return
    elif not 0 <= index < len(hosts):
        yield index_problem(source, kind, index, len(hosts))
    elif mode is Mode.train and in_use(hosts[index]):
        yield Problem(
            f"{kind} {index} is to listen at {hosts[index]}, and its port is in use",
            "another process of this machine listens there, perhaps the same task still",
            "end it, or give the task another port",
        )


def _training_problems(config: RunConfig, cluster: ClusterConfig) -> Iterator[Problem]:
    """Finds what several processes cannot do."""
    train, workers = config.train, _counted(cluster).workers
    if train.non_finite.action is NonFinite["rollback"]:
        yield Problem(
            "train.non_finite.action is rollback, in a cluster",
            "the other workers would continue with the values that were not finite",
            "train.non_finite.action=raise; with cluster.restarts the run itself goes back",
        )
    if config.model.get("jit_compile"):
        yield Problem(
            "model.jit_compile is true, in a cluster",
            "XLA compiles within one process, and the variables are in others",
            "delete model.jit_compile",
        )
    averaged = (
        f"train.ema_decay is {train.ema_decay:g}"
        if train.ema_decay
        else "optimizer.use_ema is true"
        if config.optimizer.get("use_ema")
        else ""
    )
    if averaged and train.evaluate_ema and workers > 1 and not cluster.synchronous:
        yield Problem(
            f"{averaged} with train.evaluate_ema, and {workers} workers train",
            "while the chief evaluates, the averages replace the weights on the servers, and the "
            "other workers would train them",
            "train.evaluate_ema=false evaluates the weights; or "
            + ("train.ema_decay=null" if train.ema_decay else "optimizer.use_ema=false"),
        )
    if cluster.backup > 0 and not cluster.synchronous:
        yield Problem(
            f"cluster.backup is {cluster.backup}, and cluster.synchronous is false",
            "without synchronous updates no worker waits for another",
            "cluster.synchronous=true, or cluster.backup=0",
        )
    elif cluster.backup >= workers > 0:
        yield Problem(
            f"cluster.backup is {cluster.backup}, and {workers} workers train",
            "an update needs the gradient of one worker at least",
            f"at most cluster.backup={workers - 1}",
        )
    if cluster.synchronous:
        yield from _synchronous_problems(config)


def _synchronous_problems(config: RunConfig) -> Iterator[Problem]:
    cause = "synchronous updates are made by one optimizer, at one place"
    for name, scaffold in config.scaffolds.items():
        if scaffold.freeze_until_step or scaffold.learning_rate_multiplier != 1.0:
            yield Problem(
                f"scaffolds.{name} has a schedule of its own, and cluster.synchronous is true",
                cause,
                f"delete freeze_until_step and learning_rate_multiplier of scaffolds.{name}, or "
                "set cluster.synchronous=false",
            )
    if config.model.get("dtype_policy") == "mixed_float16":
        yield Problem(
            "model.dtype_policy is mixed_float16, and cluster.synchronous is true",
            f"each worker would scale its loss differently, and {cause}",
            "model.dtype_policy=mixed_bfloat16, or cluster.synchronous=false",
        )
    if config.train.ema_decay is not None:
        yield Problem(
            f"train.ema_decay is {config.train.ema_decay:g}, and cluster.synchronous is true",
            f"every worker would move the averages at each update, and {cause}",
            "train.ema_decay=null, or cluster.synchronous=false",
        )
