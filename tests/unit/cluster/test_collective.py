"""Tasks that share each batch do together what one process does with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from runner.cluster.collective import CollectiveReplica, InputPosition, Signal
from runner.cluster.local import free_addresses
from runner.cluster.peers import run_collective_worker
from runner.cluster.sessions import session_config
from runner.config import cluster_spec
from runner.config.choices import NonFinite
from runner.config.cluster_spec import Addresses, Cluster, answers
from runner.config.schema import (
    ClipConfig,
    ClusterMode,
    DevicesConfig,
    NonFiniteConfig,
    RunConfig,
    ScaffoldConfig,
    TrainConfig,
    VariablesConfig,
)
from runner.errors import LostServerError, RunnerError, UserCodeError
from runner.graph import step_sums
from runner.graph.build import build_graph
from runner.graph.built_graph import BuiltGraph
from runner.graph.replica import Replica
from tests.support import runs
from tests.support.configs import tiny
from tests.unit.cluster.conftest import InProcess, Lines

v1 = tf.compat.v1
STEPS = 5
TASKS = 3


class Task:
    """One task's graph and its session, in which nothing is initialised."""

    def __init__(self, config: RunConfig, replica: Replica, target: str = "") -> None:
        self.shares = isinstance(replica, CollectiveReplica)
        self.is_worker = cluster_spec.task_of(config.cluster).type == "worker"
        self.built: BuiltGraph = build_graph(config, "validation", train=True, replica=replica)
        assert self.built.training is not None
        self.training = self.built.training
        with self.built.graph.as_default():
            self.initialise = [v1.global_variables_initializer(), v1.local_variables_initializer()]
            self.position = InputPosition(self.built)
            if isinstance(replica, CollectiveReplica):
                variables = self.built.variables.values()
                self.spoil = tf.group(*(each.assign_add(tf.ones_like(each)) for each in variables))
                count = config.devices.count
                self.take_over = replica.take_over(self.built.variables, replica.task * count)
                self.signals = replica.signals()
        settings = session_config(config.cluster) if target else None
        self.session = v1.Session(target, self.built.graph, settings)

    def begin(self) -> None:
        self.session.run([self.initialise[0], self.training.input_initializer])
        self.session.run(self.initialise[1])
        if self.is_worker:
            self.session.run(self.spoil)
        if self.shares:
            self.session.run(self.take_over)
        self.session.run(self.training.to_devices)

    def train(self) -> list[dict[str, float]]:
        """Takes the steps, and returns what they measure."""
        return [self.step() for _ in range(STEPS)]

    def step(self) -> dict[str, float]:
        if self.is_worker:
            assert self.signals.follow(self.session) is Signal.STEP
        elif self.shares:
            self.signals.announce(self.session, Signal.STEP)
        fetches = (dict(self.training.values), self.training.train_op)
        values: dict[str, float] = self.session.run(fetches)[0]
        return values

    def values(self) -> dict[str, Any]:
        return dict(self.session.run(dict(self.built.variables)))


class Together:
    """All tasks of a cluster, each in a thread."""

    def __init__(self, servers: InProcess, **changes: Any) -> None:
        self.tasks = []
        for number in range(servers.cluster.workers):
            place = ("chief", 0) if number == 0 else ("worker", number - 1)
            cluster = servers.config(*place)
            config = tiny(**{**changes, "cluster": cluster})
            self.tasks.append(Task(config, CollectiveReplica(cluster), servers.target(*place)))

    def do(self, function: Callable[[Task], Any]) -> list[Any]:
        """Returns what a function returns for each task."""
        with ThreadPoolExecutor(len(self.tasks)) as pool:
            return list(pool.map(function, self.tasks))


@pytest.fixture
def servers(in_process: Callable[..., InProcess]) -> InProcess:
    return in_process(TASKS, 0, mode=ClusterMode.collective)


def blobs(batch_size: int) -> dict[str, Any]:
    return {"_target_": "tests.samples.experiment.Blobs", "batch_size": batch_size, "seed": 0}


class Convolutions(keras.Model):
    """A convolution over the features, and frozen and trained parts."""

    def __init__(self) -> None:
        super().__init__(name="convolutions")
        self.convolution = keras.layers.Conv1D(3, 3, name="convolution")
        self.head = keras.layers.Dense(2, name="head")

    def call(self, features: Any, training: bool = False) -> Any:
        return self.head(keras.ops.max(self.convolution(features[:, :, None]), axis=1))


class Table(keras.Model):
    """Rows of a table, chosen by the features: sparse gradients."""

    def __init__(self) -> None:
        super().__init__(name="table")
        self.table = keras.layers.Embedding(5, 2, name="rows")

    def call(self, features: Any, training: bool = False) -> Any:
        indices = keras.ops.cast(keras.ops.clip(features + 2.0, 0, 4), "int32")
        return keras.ops.mean(self.table(indices), axis=1)


def model(name: str, **arguments: Any) -> dict[str, Any]:
    place = __name__ if name in ("Convolutions", "Table") else "tests.samples.odd"
    return {"model": {"_target_": f"{place}.{name}", **arguments}}


FLOAT64 = {
    **model("Plain", dtype_policy="float64"),
    "loss": {"_target_": "keras.losses.SparseCategoricalCrossentropy", "from_logits": True},
}
WEIGHTED = {
    "data": {"_target_": "tests.samples.objectives.Weighted"},
    "loss": {"_target_": "tests.samples.odd.Sum"},
    "metrics": {},
}
SCHEDULED = {
    "body": ScaffoldConfig(VariablesConfig(["body/*"]), learning_rate_multiplier=0.5),
    "head": ScaffoldConfig(VariablesConfig(["head/*"]), freeze_until_step=2),
}


SOAK = pytest.mark.soak
CASES = {
    # The loss is computed in float32, the weights and gradients are not.
    "uneven and accumulated": (
        {**FLOAT64, "data": blobs(7), "train": TrainConfig(steps=9, accumulate=2)},
        1e-7,
    ),
    "sparse, fewer examples than tasks": ({**model("Table"), "data": blobs(2)}, 1e-4),
    "sample weights": ({**model("Plain"), **WEIGHTED}, 1e-5),
    "convolution": (
        {**model("Convolutions"), "optimizer": {"_target_": "keras.optimizers.AdamW"}},
        1e-4,
    ),
    "recurrent and clipped": (
        {**model("Recurrent"), "train": TrainConfig(9, clip=ClipConfig(global_norm=0.05))},
        1e-4,
    ),
    "penalty": ({**model("Regularised"), "data": blobs(5)}, 1e-4),
    "schedules and averages": (
        {**model("Plain"), "scaffolds": SCHEDULED, "train": TrainConfig(9, ema_decay=0.9)},
        1e-5,
    ),
    "float16": (model("Plain", dtype_policy="mixed_float16"), 2e-2),
}
OFTEN = ("uneven and accumulated", "sparse, fewer examples than tasks")


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        pytest.param(*case, id=name, marks=[] if name in OFTEN else SOAK)
        for name, case in CASES.items()
    ],
)
def test_three_tasks_match_one_process(
    servers: InProcess, changes: dict[str, Any], tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_sums, "PACK_BYTES", 100)
    alone = Task(tiny(**changes), Replica())
    alone.begin()
    expected = alone.train()
    together = Together(servers, **changes)
    together.do(Task.begin)
    for measured in together.do(Task.train):
        for one, other in zip(measured, expected, strict=True):
            assert one == pytest.approx(other, rel=max(tolerance, 1e-6), abs=1e-6)
    weights = alone.values()
    for values in together.do(Task.values):
        assert values.keys() == weights.keys()
        for name, value in weights.items():
            if "seed_generator" in name:
                continue  # Every task draws other random numbers.
            np.testing.assert_allclose(
                values[name], value, rtol=tolerance, atol=tolerance * 0.1, err_msg=name
            )


def test_devices_divide_the_part_of_each_task(in_process: Callable[..., InProcess]) -> None:
    servers = in_process(2, 0, devices=2, mode=ClusterMode.collective)
    changes = {**FLOAT64, "data": blobs(7)}
    alone = Task(tiny(**changes), Replica())
    together = Together(servers, **changes, devices=DevicesConfig(2))
    alone.begin()
    together.do(Task.begin)
    expected = alone.train()
    for measured in together.do(Task.train):
        for one, other in zip(measured, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-6)
    weights = alone.values()
    for values in together.do(Task.values):
        for name, value in weights.items():
            np.testing.assert_allclose(values[name], value, 1e-7, 1e-8, err_msg=name)


def test_tasks_draw_other_random_numbers_from_the_chiefs_seeds(
    in_process: Callable[..., InProcess],
) -> None:
    servers = in_process(2, 0, mode=ClusterMode.collective)
    together = Together(servers, model={"_target_": "tests.samples.experiment.Net"})
    together.do(Task.begin)
    (name,) = [name for name in together.tasks[0].values() if "seed_generator" in name]
    (seed, counter), (other, same) = (values[name] for values in together.do(Task.values))
    assert (counter, same) == (0, 0)
    assert seed != other
    together.do(Task.train)
    together.do(Task.begin)  # Nothing but the chief's seed decides the other.
    assert together.tasks[1].values()[name].tolist() == [other, 0]


def test_a_position_in_the_input_is_taken_over() -> None:
    still = {
        **model("Plain"),
        "optimizer": {**tiny().optimizer, "learning_rate": 0.0},
        "data": blobs(7),
    }
    one, other = (Task(tiny(**still), Replica()) for _ in range(2))
    for task in (one, other):
        task.begin()
    one.train()
    other.position.restore(other.session, one.position.content(one.session))
    assert other.train() == one.train()


class Worker:
    """A worker of a run whose chief is in this thread."""

    def __init__(self, cluster: Cluster, **changes: Any) -> None:
        self.cluster = replace(cluster, task=cluster_spec.Task("worker", 0))
        self._config = tiny(**{**changes, "cluster": self.cluster})
        self.lines = Lines()
        self.error: RunnerError | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        # Keras's seed is the process's: the chief has built its graph by then.
        runs.wait_for(lambda: answers(self.cluster.addresses.chief[0]))
        try:
            run_collective_worker(self._config, self.lines.screen)
        except RunnerError as error:
            self.error = error

    def __enter__(self) -> Worker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def two_tasks() -> Cluster:
    """Returns a cluster, as its chief sees it.

    The servers of a process that has lost another are of no more use.
    """
    chief, worker = free_addresses(2)
    return Cluster(
        mode=ClusterMode.collective,
        workers=2,
        ps=0,
        addresses=Addresses([chief], [worker], []),
        task=cluster_spec.Task("chief", 0),
        recovery_wait_secs=0.1,
        max_wait_secs=60,
    )


ROLLBACK = NonFiniteConfig(NonFinite["rollback"], learning_rate_scale=0.1)
EPOCHS: dict[str, Any] = {"epochs": 3, "steps_per_epoch": 4, "checkpoint_every": 3}


# Keras converts variables by `np.array(..., copy=False)`.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("case", ["callbacks", pytest.param("rolled back", marks=pytest.mark.soak)])
def test_tasks_follow_what_changes_the_chiefs_values(case: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        **FLOAT64,
        "data": blobs(7),
        "train": TrainConfig(**EPOCHS, non_finite=ROLLBACK),
        "optimizer": {"_target_": "keras.optimizers.Adam", "learning_rate": 0.01},
    }
    if case == "callbacks":
        changes["callbacks"] = {"halve": {"_target_": "tests.samples.keras_callbacks.Halve"}}
    for name, cluster in (("alone", None), ("together", two_tasks())):
        if case == "rolled back":
            marker = str(tmp_path / f"{name}.marker")
            changes["hooks"] = runs.disturbed("SpoilOnce", step=8, marker=marker)
        if cluster is None:
            runs.run(tmp_path / name, **changes)
        else:
            with Worker(cluster, **changes) as worker:
                lines = runs.run(tmp_path / name, cluster=cluster, **changes)
            assert worker.error is None
    assert any("back to" in line for line in lines) == (case == "rolled back")
    alone, together = (runs.Runs(tmp_path / name).values() for name in ("alone", "together"))
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        if isinstance(value, np.ndarray | np.number):
            np.testing.assert_allclose(together[name], value, 1e-6, 1e-7, err_msg=name)


def test_a_run_whose_chief_fails_is_resumed_by_all_and_is_that_of_one_process(
    tmp_path: Path,
) -> None:
    train = TrainConfig(steps=6, checkpoint_every=2, log_every=1)
    model = {"_target_": "tests.samples.odd.Plain"}
    changes: dict[str, Any] = {"model": model, "train": train}
    runs.run(tmp_path / "alone", **changes)
    changes["hooks"] = runs.disturbed("FailOnce", step=5, marker=str(tmp_path / "failed"))

    folder = tmp_path / "together"
    first = two_tasks()
    with Worker(first, **changes) as worker, pytest.raises(UserCodeError, match="the hook failed"):
        runs.run(folder, cluster=first, **changes)
    assert isinstance(worker.error, LostServerError)
    assert worker.error.problems[0].state == "another task was lost"
    second = two_tasks()
    with Worker(second, **changes) as worker:
        lines = runs.run(folder, cluster=second, **changes)
    assert worker.error is None
    assert worker.lines()[-2:] == ["trains from step 4", "done"]
    assert "cluster: trains from step 4" in lines
    assert not [line for line in lines if line.startswith("input:")]
    alone, together = runs.Runs(tmp_path / "alone"), runs.Runs(folder)
    assert together.steps() == alone.steps()
    for name, value in alone.values().items():
        np.testing.assert_allclose(
            together.values()[name], value, rtol=1e-5, atol=1e-7, err_msg=name
        )
