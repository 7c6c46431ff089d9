"""The structured config of training by several processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"
TASKS = (CHIEF, WORKER, PS, EVALUATOR)


class Placement(Enum):
    """How variables are spread over parameter servers."""

    round_robin = "round_robin"
    # Each to the one that holds the fewest bytes so far.
    by_size = "by_size"


@dataclass
class AddressesConfig:
    """The tasks of a cluster by type, each as `host:port`; an evaluator has no address."""

    chief: list[str] = field(default_factory=list)
    worker: list[str] = field(default_factory=list)
    ps: list[str] = field(default_factory=list)


@dataclass
class TaskConfig:
    """Which task of the cluster this process is."""

    # chief, worker, ps or evaluator; null in a process that is none.
    type: str | None = None
    index: int = 0


@dataclass
class ClusterConfig:
    """Training by several processes; `TF_CONFIG` may say the same of addresses and task."""

    # True starts all tasks as processes on this machine.
    local: bool = False
    # How many tasks train; the chief is one of them. With `local` only: addresses count themselves.
    workers: int = 1
    # How many parameter servers hold the variables; with `local` only.
    ps: int = 1
    # Whether there is also a task that evaluates every checkpoint.
    evaluator: bool = False
    addresses: AddressesConfig = field(default_factory=AddressesConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    # True makes one update of one gradient from each worker; otherwise each updates on its own.
    synchronous: bool = False
    # Of the workers, how many a synchronous update does not wait for.
    backup: int = 0
    placement: Placement = Placement.round_robin
    # Larger variables that a model makes by `tf.compat.v1.get_variable` when it is constructed are
    # cut into parts of at most so many bytes; null cuts none. Keras makes its variables whole.
    partition_bytes: int | None = None
    # How long a task waits for others: for the servers to answer, for the chief to make the model
    # ready, and for a synchronous update to be complete; in seconds.
    max_wait_secs: float = 1800.0
    # How often a waiting task looks, in seconds.
    recovery_wait_secs: float = 2.0
    # How long the chief waits at the end for the others to finish, in seconds; and a local cluster
    # for its tasks to end after a signal, where the chief has session.grace_seconds at least.
    grace_secs: float = 30.0
    # How often each task that fails is started again; with `local` only.
    restarts: int = 0
