"""What cannot be trained by several processes."""

from __future__ import annotations

from runner.cluster.tasks import has_addresses
from runner.cluster_config import ClusterConfig
from runner.config import NonFinite, RunConfig
from runner.errors import Problem


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
