"""The cluster that a configuration and `TF_CONFIG` describe together, and its contradictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from runner.config.choices import Mode
from runner.config.cluster_spec import (
    VARIABLE,
    Cluster,
    Task,
    addresses_by_type,
    addresses_of,
    in_use,
    is_cluster,
    is_collective,
    read_tf_config,
    split,
    task_of,
    trainers,
)
from runner.config.conditions import Setup, conflict_problems
from runner.config.conflicts import IN_A_CLUSTER, IN_A_SWEEP
from runner.config.schema import (
    CHIEF,
    EVALUATOR,
    TASKS,
    ClusterConfig,
    RunConfig,
)
from runner.errors import ConfigError, Problem, ranked


def resolve_cluster(config: RunConfig, environ: Mapping[str, str]) -> RunConfig:
    """Returns the configuration with the cluster that it and `TF_CONFIG` describe together.

    With `TF_CONFIG`, the cluster is a `Cluster`, whose `workers` and `ps` count its tasks. A chief
    alone is not a cluster.

    Raises:
      ConfigError: with every mistake in the two.
    """
    cluster = config.cluster
    tf_config = read_tf_config(environ)
    if config.mode not in (Mode.train, Mode.plan):
        _require_chief(config.mode, task_of(tf_config or cluster))
        return config
    if tf_config is not None:
        cluster = _together(cluster, tf_config)
    addresses = addresses_of(cluster)
    alone = bool(addresses.chief) and not (addresses.worker or addresses.ps)
    counted = _counted(cluster)
    setup = Setup(
        replace(config, cluster=_not_counted(cluster, counted)),
        counted if is_cluster(cluster) and not alone else None,
    )
    problems = conflict_problems(IN_A_CLUSTER, setup)
    if isinstance(cluster, Cluster):
        problems += _address_problems(cluster)
        problems += _task_problems(cluster, config.mode)
    if problems:
        raise ConfigError(*problems)
    return config if alone else replace(config, cluster=counted)


def _together(cluster: ClusterConfig, tf_config: Cluster) -> Cluster:
    if cluster.local and not tf_config.local:
        raise ConfigError.of(
            f"cluster.local is true, and {VARIABLE} is set",
            f"with {VARIABLE} this process would be one task of a cluster that exists",
            f"unset {VARIABLE}, or set cluster=none",
        )
    evaluator = cluster.evaluator or tf_config.evaluator
    changes = {"addresses": tf_config.addresses, "task": tf_config.task, "evaluator": evaluator}
    return Cluster(**{**vars(cluster), **changes})


def resolve_trial(config: RunConfig, environ: Mapping[str, str]) -> RunConfig:
    """Returns the configuration of a trial of a sweep, resolved as by `resolve_cluster`.

    Raises:
      ConfigError: also for what does not go with a sweep.
    """
    resolved = resolve_cluster(config, environ)
    if problems := conflict_problems(IN_A_SWEEP, Setup(resolved, sweeps=True)):
        raise ConfigError(*problems)
    return resolved


def _require_chief(mode: Mode, task: Task) -> None:
    """Raises ConfigError if this is one of several tasks that would all do the same."""
    if task.type != CHIEF:
        raise ConfigError.of(
            f"mode is {mode.value}, and this process is {task.type} {task.index} of a cluster",
            "one process does that alone, and every task would repeat it",
            f"start mode={mode.value} in the chief alone, or unset {VARIABLE}",
        )


def _counted(cluster: ClusterConfig) -> ClusterConfig:
    """Returns the cluster with its tasks counted from the addresses, if there are any."""
    if not isinstance(cluster, Cluster):
        return replace(cluster, ps=0) if cluster.local and is_collective(cluster) else cluster
    return replace(
        cluster,
        workers=len(trainers(cluster)),
        ps=len(cluster.addresses.ps),
        evaluator=cluster.evaluator or cluster.task.type == EVALUATOR,
    )


def _not_counted(cluster: ClusterConfig, counted: ClusterConfig) -> ClusterConfig:
    """Returns a cluster without the numbers of tasks that its addresses repeat."""
    repeated = {key for key in ("workers", "ps") if getattr(cluster, key) == getattr(counted, key)}
    if not isinstance(cluster, Cluster) or cluster.local:
        return cluster
    return replace(cluster, **{key: getattr(ClusterConfig(), key) for key in repeated})


def _address_problems(cluster: Cluster) -> Iterator[Problem]:
    """Yields the problems of addresses that are malformed or missing."""
    for kind, hosts in addresses_by_type(cluster).items():
        for index, address in enumerate(hosts):
            if split(address) is None:
                yield Problem(
                    f"{VARIABLE}: {kind} {index} is at {address!r}",
                    "it is not an address",
                    "write host:port, with a port from 1 to 65535",
                )
    chiefs = len(cluster.addresses.chief)
    if chiefs != 1:
        yield Problem(
            f"{VARIABLE}: there {'is no chief' if not chiefs else f'are {chiefs} chiefs'}",
            "one task initialises, restores, saves and records for all",
            "give `chief` one address, for example by moving the first worker's there",
        )
    if is_collective(cluster):
        if cluster.addresses.ps:
            yield Problem(
                f"{VARIABLE}: there are parameter servers, and cluster.mode is collective",
                "every task holds all variables itself",
                "delete `ps`, or set cluster.mode=parameter_servers",
            )
    elif not cluster.addresses.ps:
        evaluated = cluster.evaluator or cluster.task.type == EVALUATOR
        if cluster.addresses.worker or evaluated:
            others = "workers" if cluster.addresses.worker else "a chief and an evaluator"
            yield Problem(
                f"{VARIABLE}: there are {others}, and no ps",
                "tasks share their variables through parameter servers",
                "give `ps` at least one address, or set cluster.mode=collective, which needs none; "
                "a chief alone also evaluates by itself (train.evaluate_every)",
            )


def _task_problems(cluster: Cluster, mode: Mode) -> Iterator[Problem]:
    """Yields the problem that keeps this process from being its task, if there is one."""
    kind, index = cluster.task.type, cluster.task.index
    hosts = addresses_by_type(cluster).get(kind, [])
    if kind not in TASKS:
        yield Problem(
            f"{VARIABLE}: this task is of type {kind!r}",
            "there is no such type",
            "fix the type",
            ranked(kind, TASKS),
        )
    elif kind == EVALUATOR:
        return
    elif not 0 <= index < len(hosts):
        yield Problem(
            f"{VARIABLE}: this task is {kind} {index}, and there "
            f"{'is' if len(hosts) == 1 else 'are'} {len(hosts) or 'none'} of that type",
            "its index is the position of its address, counted from 0",
            "fix the index, or add the task's address",
            [f"{kind} {number}" for number in range(len(hosts))],
        )
    elif mode is Mode.train and in_use(hosts[index]):
        yield Problem(
            f"{kind} {index} is to listen at {hosts[index]}, and its port is in use",
            "another process of this machine listens there, perhaps the same task still",
            "end it, or give the task another port",
        )
