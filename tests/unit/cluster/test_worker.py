"""A worker follows its chief, and acts on its own loss."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from runner.cluster.channel import Channel, ready_flags
from runner.cluster.sessions import session_config
from runner.cluster.task_replica import ClusterReplica
from runner.cluster.worker import ChiefHook, train_worker
from runner.config.choices import NonFinite
from runner.config.schema import NonFiniteConfig, TrainConfig
from runner.errors import ClusterError, ConfigError, InterruptedRunError, NonFiniteLossError
from runner.graph.build import build_graph
from tests.unit.cluster.conftest import InProcess, Lines

v1 = tf.compat.v1
LAST = 10


class Both:
    """Sessions of a chief and of a worker, with the worker's hook; what the chief does is scripted.

    `actions` are what the chief does, one at each look of the worker's but the first.
    """

    def __init__(self, servers: InProcess) -> None:
        self._servers = servers
        with tf.Graph().as_default() as self._graph:
            with tf.device("/job:ps/task:0"):
                step = v1.train.get_or_create_global_step()
                self._value = v1.placeholder(tf.int64, [])
                self._assign = step.assign(self._value).op
            self._training: Any = SimpleNamespace(
                train_op=tf.no_op(), step=step.read_value(), values={"loss": tf.constant(0.5)}
            )
            self.channel = Channel(servers.cluster)
            self._clear = [flag.clear_op for flag in self.channel.session_flags(1)]
        self.chief, self.worker = map(self._session, ("chief", "worker"))

    def _session(self, kind: str) -> Any:
        config = session_config(self._servers.config(kind))
        return v1.Session(self._servers.target(kind), self._graph, config)

    def begin(self, action: str = "raise") -> None:
        """Begins a session of the worker's, in which the model is ready and at step 3."""
        now = [0.0]
        self.lines, self.actions = Lines(), list[Callable[[], object]]()

        def sleep(seconds: float) -> None:
            now[0] += seconds
            if self.actions:
                self.actions.pop(0)()

        train = TrainConfig(steps=LAST, non_finite=NonFiniteConfig(NonFinite[action]))
        task = self._servers.task("worker", self.lines, train=train)
        self.interruption = task.interruption
        with self._graph.as_default():
            self.hook = ChiefHook(
                task, self._training, self.channel, clock=lambda: now[0], sleep=sleep
            )
            self.hook.begin()
        self.set_step(3)
        self.rebuild()
        self.channel.ended["worker0"].clear(self.chief)
        self.hook.after_create_session(self.worker, tf.train.Coordinator())

    def set_step(self, to: int) -> None:
        self.chief.run(self._assign, {self._value: to})

    def rebuild(self) -> None:
        """Rebuilds the model."""
        self.chief.run(self._clear)
        self.channel.ready.set(self.chief)

    def after_step(self, loss: float = 0.5) -> bool:
        """Takes a step; returns whether the worker stops."""
        asked: list[bool] = []
        context = SimpleNamespace(session=self.worker, request_stop=lambda: asked.append(True))
        _, *results = self.worker.run(self.hook.before_run(context).fetches)
        self.hook.after_run(context, SimpleNamespace(results=(loss, *results)))
        return bool(asked)


@pytest.fixture(scope="module")
def servers(in_process: Callable[..., InProcess]) -> InProcess:
    return in_process(2, 1)


@pytest.fixture(scope="module")
def both(servers: InProcess) -> Iterator[Both]:
    both = Both(servers)
    yield both
    both.chief.close()
    both.worker.close()


@pytest.fixture
def found(both: Both) -> Both:
    both.begin()
    return both


def test_a_worker_ends_when_the_last_step_is_saved(found: Both) -> None:
    assert found.lines() == ["trains from step 3"]
    assert not found.after_step()
    found.set_step(LAST)
    found.actions = [
        lambda: found.channel.finished.set(found.chief),
        lambda: None,
        lambda: found.channel.saved.set(found.chief),
    ]
    assert found.after_step()
    assert found.actions == []
    assert found.channel.running(found.chief) == ["worker0"]
    found.hook.end(found.worker)
    assert found.channel.running(found.chief) == []


def test_a_chief_that_comes_back_to_an_earlier_step_finds_its_worker(found: Both) -> None:
    found.channel.finished.set(found.chief)

    def come_back() -> None:
        found.set_step(5)
        found.rebuild()

    found.actions = [come_back]
    assert not found.after_step()
    assert not found.after_step()


def test_a_session_made_when_all_is_over_takes_no_step(found: Both) -> None:
    found.channel.finished.set(found.chief)
    found.channel.saved.set(found.chief)
    coordinator = tf.train.Coordinator()
    found.hook.after_create_session(found.worker, coordinator)
    assert coordinator.should_stop()
    # TensorFlow runs the step in which the session before was lost again, stopped or not.
    with pytest.raises(StopIteration, match="training is over"):
        found.hook.before_run(SimpleNamespace(session=found.worker))


def test_a_session_is_given_up_when_the_chief_initialises_the_model_again(found: Both) -> None:
    found.channel.ready.clear(found.chief)
    with pytest.raises(tf.errors.AbortedError, match="the chief initialises the model again"):
        found.after_step()
    found.rebuild()
    found.channel.finished.set(found.chief)
    found.actions = [lambda: found.channel.ready.clear(found.chief)]
    with pytest.raises(tf.errors.AbortedError, match="the chief initialises the model again"):
        found.after_step()


def test_a_worker_does_not_wait_for_the_last_checkpoint_for_ever(found: Both) -> None:
    found.set_step(LAST)
    with pytest.raises(ClusterError, match="training is over, and not saved after 20 s"):
        found.after_step()


def test_a_signal_ends_the_wait_and_is_no_end(found: Both) -> None:
    with found.interruption.handled(), found.interruption.deferred():
        found.set_step(LAST)
        found.actions = [lambda: os.kill(os.getpid(), signal.SIGTERM)]
        with pytest.raises(InterruptedRunError, match="SIGTERM"):
            found.after_step()
        found.hook.end(found.worker)
        assert found.channel.running(found.chief) == ["worker0"]


def test_a_loss_that_is_not_finite_fails_or_asks_for_the_end(found: Both) -> None:
    nan = float("nan")
    with pytest.raises(NonFiniteLossError, match="this worker's loss is nan at step 3"):
        found.after_step(nan)
    assert not found.channel.stop.is_set(found.chief)
    found.begin("stop")
    assert not found.after_step(nan)
    assert not found.after_step(nan)
    assert found.channel.stop.is_set(found.chief)
    assert found.lines()[1:] == [
        "asks the chief to end the training: this worker's loss is nan at step 3"
    ]


def test_a_worker_whose_data_end_fails(servers: InProcess) -> None:
    data, model = {"_target_": "tests.samples.odd.Once"}, {"_target_": "tests.samples.odd.Plain"}
    task = servers.task("worker", data=data, model=model)
    replica = ClusterReplica(task.cluster)
    built = build_graph(task.config, "validation", train=True, replica=replica)
    with tf.Graph().as_default():
        set_ready = ready_flags(1)[0].set_op
        with v1.Session(servers.target("chief")) as chief:
            chief.run(set_ready)
    with v1.Session(servers.target("worker"), built.graph, session_config(task.cluster)) as session:
        session.run([variable.initializer for variable in built.variables.values()])
    # MonitoredSession alone would take it for an orderly end.
    with pytest.raises(ConfigError, match=r"^data\.train\(\) ended before step 20"):
        train_worker(task, built)
