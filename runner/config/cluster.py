"""Which cluster a configuration and the environment describe, and which task this process is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runner.config.choices import Mode
from runner.config.cluster_rules import (
    address_problems,
    conflicts,
    count_problems,
    idle_problems,
    lone_problems,
    number_problems,
    task_problems,
    training_problems,
)
from runner.config.cluster_tasks import has_addresses, is_cluster, is_task
from runner.config.schema import (
    CHIEF,
    EVALUATOR,
    PS,
    TASKS,
    WORKER,
    AddressesConfig,
    ClusterConfig,
    RunConfig,
    TaskConfig,
)
from runner.config.tf_config import VARIABLE, TfConfig, read_tf_config
from runner.errors import ConfigError, Problem, ranked


def resolve(config: RunConfig, environ: Mapping[str, str]) -> RunConfig:
    """Returns the configuration with the cluster that it and `TF_CONFIG` describe together.

    Where there is one, `cluster.addresses` and `cluster.task` then name it and this process, and
    `cluster.workers` and `cluster.ps` count. A chief alone is no cluster.

    Args:
      config: the validated configuration.
      environ: the environment.

    Raises:
      ConfigError: with every mistake in them.
    """
    given = config.cluster
    tf_config = read_tf_config(environ)
    if config.mode not in (Mode.train, Mode.plan):
        _require_chief(config, tf_config)
        return config
    problems = conflicts(given, tf_config)
    cluster = given
    if tf_config is not None and not problems:
        cluster = _with(given, tf_config)
    elif tf_config is not None and has_addresses(given) and given.task.type is None:
        cluster = replace(given, task=TaskConfig(tf_config.task_type, tf_config.task_index))
    problems += number_problems(cluster)
    if is_cluster(cluster) and not _chief_alone(cluster):
        problems += training_problems(config, cluster)
    if has_addresses(cluster):
        addresses = VARIABLE if tf_config else "cluster.addresses"
        problems += address_problems(cluster, addresses)
        problems += task_problems(cluster, config.mode, VARIABLE if tf_config else "cluster.task")
        problems += count_problems(cluster, addresses)
        problems += lone_problems(cluster, addresses) if _chief_alone(cluster) else []
    elif cluster.task.type is not None and not cluster.local:
        problems.append(
            Problem(
                f"cluster.task.type is {cluster.task.type}, and there are no addresses",
                "a task must know where the others are",
                "set cluster.addresses.chief, .worker and .ps, or TF_CONFIG",
                () if cluster.task.type in TASKS else ranked(cluster.task.type, TASKS),
            )
        )
    elif not cluster.local:
        problems += idle_problems(cluster)
    if problems:
        raise ConfigError(*problems)
    if _chief_alone(cluster):
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
                "each task would sweep by itself, and meet the others in no trial",
                "cluster=local starts a cluster for each trial; on several machines start each "
                "trial as a run of its own",
            )
        )
    return found


def _require_chief(config: RunConfig, tf_config: TfConfig | None) -> None:
    """Raises ConfigError where this is one of several tasks that would all do the same."""
    task = config.cluster.task
    kind, index = task.type, task.index
    if tf_config is not None:
        kind, index = tf_config.task_type, tf_config.task_index
    if kind not in (None, CHIEF):
        mode = config.mode.value
        raise ConfigError(
            Problem(
                f"mode is {mode}, and this process is {kind} {index} of a cluster",
                "one process does that alone, and every task would do it again beside it",
                f"start mode={mode} in the chief alone, or unset {VARIABLE} and cluster.task",
            )
        )


def _with(cluster: ClusterConfig, tf_config: TfConfig) -> ClusterConfig:
    addresses = AddressesConfig(
        **{each: list(tf_config.addresses.get(each, ())) for each in (CHIEF, WORKER, PS)}
    )
    return replace(
        cluster,
        addresses=addresses,
        task=TaskConfig(tf_config.task_type, tf_config.task_index),
        evaluator=cluster.evaluator or bool(tf_config.evaluators),
    )


def _chief_alone(cluster: ClusterConfig) -> bool:
    addresses = cluster.addresses
    return bool(addresses.chief) and not addresses.worker and not addresses.ps


def _counted(cluster: ClusterConfig) -> ClusterConfig:
    """Returns the cluster with its tasks counted from the addresses, if there are any."""
    if not has_addresses(cluster):
        return cluster
    addresses = cluster.addresses
    return replace(
        cluster,
        workers=len(addresses.chief) + len(addresses.worker),
        ps=len(addresses.ps),
        evaluator=cluster.evaluator or cluster.task.type == EVALUATOR,
    )
