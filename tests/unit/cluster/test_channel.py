"""What one task says through the first parameter server, another hears."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf

from runner.cluster import channel
from runner.cluster.channel import Channel
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

        assert told.running(chief) == ["worker0", "evaluator"]
        telling.end(worker, "worker0")
        assert told.running(chief) == ["evaluator"]
        assert not telling.is_saved(worker)
        told.save(chief)
        assert telling.is_saved(worker)
    with (
        tf.Graph().as_default(),
        tf.compat.v1.Session(servers.target("ps"), config=remote_config()) as session,
    ):
        flag = Channel.released(0)
        assert not session.run(flag.value)
        session.run(flag.set)
        assert session.run(flag.value)
