"""The environment variable `TF_CONFIG` in the form that TensorFlow documents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.config.schema import CHIEF, EVALUATOR, TASKS, WORKER
from runner.errors import ConfigError, Problem, ranked

VARIABLE = "TF_CONFIG"
# What older scripts call the chief.
MASTER = "master"
# The `environment` of tasks that were started by `cluster.local`.
LOCAL = "runner-local"

_EXAMPLE = (
    '{"cluster": {"chief": ["host:2222"], "worker": [...], "ps": [...]}, '
    '"task": {"type": "worker", "index": 0}}'
)


@dataclass(frozen=True)
class TfConfig:
    """What the variable says.

    Attributes:
      addresses: chief, worker, ps -> `host:port` of each of its tasks.
      task_type: which task this process is.
      task_index: which of its type.
      environment: who started the task; any text.
      evaluators: the addresses of evaluators, which take no part in the cluster.
    """

    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    task_type: str = ""
    task_index: int = 0
    environment: str = ""
    evaluators: tuple[str, ...] = ()


def read_tf_config(environ: Mapping[str, str]) -> TfConfig | None:
    """Returns what `TF_CONFIG` says; None where it is not set or names no cluster.

    `master` is read as `chief`. Without either the first worker is the chief, as TensorFlow has it,
    and the others are counted from there: worker 1 becomes worker 0.

    Raises:
      ConfigError: with everything that is not in its documented form.
    """
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            Problem(f"{VARIABLE} is {text!r}", f"it is not JSON: {error}", f"write {_EXAMPLE}")
        ) from error
    if not isinstance(content, Mapping):
        raise ConfigError(
            Problem(f"{VARIABLE} is {text!r}", "it is not a JSON object", f"write {_EXAMPLE}")
        )
    cluster = content.get("cluster")
    if not cluster:
        return None
    problems: list[Problem] = []
    addresses = _addresses(cluster, problems)
    task_type, task_index = _task(content.get("task"), problems)
    headless = not addresses.get(CHIEF) and bool(addresses.get(WORKER))
    # Of what is left out or counted anew here, nobody else sees the original numbers.
    uncounted = (EVALUATOR, WORKER) if headless else (EVALUATOR,)
    count = len(addresses.get(task_type, ()))
    if task_type in uncounted and count and not 0 <= task_index < count:
        problems.append(index_problem(VARIABLE, task_type, task_index, count))
    if problems:
        raise ConfigError(*problems)
    if headless:
        first, *others = addresses[WORKER]
        addresses = {**addresses, CHIEF: (first,), WORKER: tuple(others)}
        if task_type == WORKER:
            task_type, task_index = (WORKER, task_index - 1) if task_index else (CHIEF, 0)
    evaluators = addresses.pop(EVALUATOR, ())
    environment = str(content.get("environment", ""))
    return TfConfig(addresses, task_type, task_index, environment, evaluators)


def write_tf_config(
    addresses: Mapping[str, tuple[str, ...]], task_type: str, task_index: int
) -> str:
    """Returns the value of `TF_CONFIG` for a task of a cluster on this machine."""
    return json.dumps(
        {
            "cluster": {each: list(hosts) for each, hosts in addresses.items()},
            "task": {"type": task_type, "index": task_index},
            "environment": LOCAL,
        }
    )


def _addresses(cluster: Any, problems: list[Problem]) -> dict[str, tuple[str, ...]]:
    if not isinstance(cluster, Mapping):
        problems.append(
            Problem(
                f"{VARIABLE}: cluster is {cluster!r}",
                "it is not an object of task types, each with a list of addresses",
                f"write {_EXAMPLE}",
            )
        )
        return {}
    if MASTER in cluster and CHIEF in cluster:
        problems.append(
            Problem(
                f"{VARIABLE}: cluster has a {MASTER} and a {CHIEF}",
                f"{MASTER} is the old name of the {CHIEF}",
                f"delete {MASTER}",
            )
        )
    found = {}
    for given, hosts in cluster.items():
        kind = CHIEF if given == MASTER else given
        if kind not in TASKS:
            problems.append(
                Problem(
                    f"{VARIABLE}: cluster has tasks of type {given!r}",
                    "there is no such type",
                    "rename or delete them",
                    ranked(str(given), TASKS),
                )
            )
        elif not isinstance(hosts, list) or not all(isinstance(each, str) for each in hosts):
            problems.append(
                Problem(
                    f"{VARIABLE}: cluster.{given} is {hosts!r}",
                    "it is not a list of addresses",
                    f'for example {{"{given}": ["host:2222"]}}',
                )
            )
        else:
            found[kind] = tuple(hosts)
    if len(found.get(EVALUATOR, ())) > 1:
        problems.append(
            Problem(
                f"{VARIABLE}: there are {len(found[EVALUATOR])} evaluators",
                "each would evaluate every checkpoint, and record the same metrics",
                "give `evaluator` one address, or none",
            )
        )
    return found


def _task(task: Any, problems: list[Problem]) -> tuple[str, int]:
    if not isinstance(task, Mapping) or "type" not in task:
        problems.append(
            Problem(
                f"{VARIABLE} names no task",
                "each process must know which one it is",
                f"write {_EXAMPLE}",
                TASKS,
            )
        )
        return "", 0
    kind = str(task["type"])
    kind = CHIEF if kind == MASTER else kind
    index = task.get("index", 0)
    try:
        if isinstance(index, float) and not index.is_integer():
            raise ValueError(index)
        return kind, int(index)
    except (TypeError, ValueError):
        problems.append(
            Problem(
                f"{VARIABLE}: task.index is {index!r}",
                "it is not a whole number",
                "count the tasks of each type from 0",
            )
        )
        return kind, 0


def index_problem(source: str, kind: str, index: int, count: int) -> Problem:
    """The problem of a task whose index is that of none.

    Args:
      source: what names the task.
      kind: its type.
      index: its index.
      count: how many tasks of that type there are.
    """
    return Problem(
        f"{source}: this task is {kind} {index}, and there "
        f"{'is' if count == 1 else 'are'} {count or 'none'} of that type",
        "its index is that of its address, counted from 0",
        "mend the index, or add the task's address",
        tuple(f"{kind} {each}" for each in range(count)),
    )
