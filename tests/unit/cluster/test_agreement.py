"""Tasks whose settings are not the chief's are refused."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tensorflow as tf

from runner.cluster.channel import Agreement
from runner.cluster.server import remote_config, session_config
from runner.config.schema import (
    ClusterConfig,
    MaskConfig,
    SessionConfig,
    TrackingConfig,
    TrainConfig,
)
from runner.errors import ClusterError
from tests.tiny.configs import tiny
from tests.unit.cluster.conftest import InProcess


def agreement(servers: InProcess, kind: str, cluster: ClusterConfig, **changes: Any) -> Agreement:
    config = tiny(cluster=cluster, **changes)
    return Agreement(config, servers.target(kind), session_config(servers.task(kind)))


def test_a_task_with_other_settings_is_refused(in_process: Callable[..., InProcess]) -> None:
    servers = in_process(2, 1)
    own = servers.task("worker")
    agreement(servers, "worker", own, seed=9).check()  # The chief has not been there.
    chief = servers.cluster
    secret: dict[str, Any] = {"_target_": "tests.tiny.experiment.Blobs", "token": "first secret"}
    hidden = TrackingConfig(uri=None, mask=MaskConfig(names=["*token"]))
    agreement(servers, "chief", chief, data=secret, tracking=hidden).leave()

    # What is a task's own may differ.
    agreement(
        servers,
        "worker",
        replace(own, max_wait_secs=1.0),
        data={**secret, "token": "another secret"},
        tracking=replace(hidden, uri="elsewhere"),
        session=SessionConfig(intra_op_threads=1),
        run_dir="elsewhere",
        train=TrainConfig(steps=20, log_every=1, evaluate_every=10, checkpoint_every=1),
    ).check()
    changed = agreement(
        servers,
        "worker",
        replace(own, synchronous=True),
        data={**secret, "batch_size": 3},
        tracking=hidden,
        seed=9,
    )
    with pytest.raises(ClusterError) as error:
        changed.check()
    (problem,) = error.value.problems
    assert problem.state == (
        "this task has other settings than the chief: cluster.synchronous is True here and "
        "False there; data.batch_size is 3 here and not set there; seed is 9 here and 0 there"
    )
    assert problem.cause
    assert problem.remedy
    many = agreement(servers, "worker", own, model={str(each): each for each in range(9)})
    with pytest.raises(ClusterError, match=r"there; 8 more\n"):
        many.check()
    # A restarted chief may have others.
    agreement(servers, "chief", chief, data=secret, seed=9).leave()
    agreement(servers, "worker", own, data=secret, seed=9).check()


def test_a_server_that_is_away_is_left_to_others() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        target = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        config = remote_config()
        config.operation_timeout_in_ms = 500
        tf.config.list_physical_devices()
        Agreement(tiny(), target, config).check()
