"""What a worker does about its own loss."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runner.cluster.worker import _FiniteLoss
from runner.cluster_config import ClusterConfig, TaskConfig
from runner.errors import NonFiniteLossError
from runner.graph import build_graph
from tests.tiny.configs import tiny


def test_a_loss_that_is_no_number_is_an_error() -> None:
    cluster = ClusterConfig(local=True, workers=2, task=TaskConfig("worker", 0))
    built = build_graph(tiny(cluster=cluster), "validation", train=True)
    assert built.training is not None
    hook = _FiniteLoss(built.training)
    hook.after_run(None, SimpleNamespace(results=(0.5, 6)))
    with pytest.raises(NonFiniteLossError, match="this worker's loss is nan at step 7"):
        hook.after_run(None, SimpleNamespace(results=(float("nan"), 7)))
