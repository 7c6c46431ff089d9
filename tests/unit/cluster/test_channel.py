"""What one task says through the first parameter server, another hears."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf

from runner.cluster import channel
from runner.cluster.channel import (
    Channel,
    State,
    flags_of_a_session,
    left_flag,
    ready_flags,
    released_flag,
)
from runner.cluster.server import remote_config, session_config
from tests.unit.cluster.conftest import InProcess


def test_metrics_and_ends_reach_the_chief(
    in_process: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "CAPACITY", 2)
    servers = in_process(2, 2)
    graphs, channels, sessions = {}, {}, {}
    for kind in ("chief", "worker"):
        with tf.Graph().as_default() as graphs[kind]:
            channels[kind] = Channel(["worker0", "evaluator"])
        sessions[kind] = tf.compat.v1.Session(
            servers.target(kind), graphs[kind], session_config(servers.task(kind))
        )
    chief, worker = sessions["chief"], sessions["worker"]
    with chief, worker:
        told, telling = channels["chief"], channels["worker"]
        assert told.receive(chief) == []
        assert telling.send(worker, "worker0", {"loss": 0.5}, 3)
        assert telling.send(worker, "worker0", {"loss": float("nan")}, 4)
        assert not telling.send(worker, "worker0", {"loss": 0.1}, 5)
        found = told.receive(chief)
        assert found[0] == ("worker0", 3, {"loss": 0.5})
        assert (found[1][1], str(found[1][2]["loss"])) == (4, "nan")
        assert told.receive(chief) == []

        assert telling.run(worker) is None
        told.lead(chief, "001")
        told.lead(chief, "002")
        assert telling.run(worker) == "002"

        assert told.running(chief) == ["worker0", "evaluator"]
        telling.end(worker, "worker0")
        assert told.running(chief) == ["evaluator"]
        telling.end(worker, "evaluator")
        telling.begin(worker, "evaluator")
        assert told.running(chief) == ["evaluator"]
        assert telling.look(worker) == State(False, False, False)
        told.save(chief)
        told.finish(chief)
        assert telling.look(worker) == State(finished=True, saved=True, ready=False)
        assert not told.is_asked_to_stop(chief)
        telling.ask_to_stop(worker)
        assert told.is_asked_to_stop(chief)
    with (
        tf.Graph().as_default(),
        tf.compat.v1.Session(servers.target("ps"), config=remote_config()) as session,
    ):
        flag, other = released_flag(0), left_flag(0)
        assert session.run([flag.value, other.value]) == [False, False]
        session.run(flag.set)
        assert session.run([flag.value, other.value]) == [True, False]


def test_a_new_session_of_the_chief_begins_without_flags(
    in_process: Callable[..., InProcess],
) -> None:
    servers = in_process(1, 2)
    config = session_config(servers.cluster)
    with tf.Graph().as_default(), tf.compat.v1.Session(servers.target("chief"), config=config) as s:
        channel = Channel(["worker0"])
        ready, released = ready_flags(2), released_flag(1)
        unset = [each.unset for each in flags_of_a_session(2)]
        s.run(unset)  # None of them is there yet.
        channel.finish(s)
        channel.save(s)
        channel.ask_to_stop(s)
        channel.end(s, "worker0")
        s.run([released.set, left_flag(0).set, *(each.set for each in ready)])
        assert channel.look(s) == State(True, True, True)
        channel.pause(s)
        assert channel.look(s) == State(finished=True, saved=True, ready=False)
        for _ in range(2):
            s.run(unset)
            assert channel.look(s) == State(False, False, False)
            assert channel.running(s) == []  # A worker that has ended does not come back.
            assert not channel.is_asked_to_stop(s)
            flags = (*ready, left_flag(0), released)
            assert s.run([each.value for each in flags]) == [False, False, False, True]
            s.run(ready[0].set)
            assert channel.look(s).ready
