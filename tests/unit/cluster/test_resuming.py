"""The graph's own saver restores what fits; `cluster/test_chief.py` has what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.cluster.resuming import resuming_saver
from runner.config.schema import ClusterConfig
from runner.graph.build import build_graph
from tests.tiny import runs
from tests.tiny.configs import tiny


def test_a_run_of_as_many_workers_is_restored_by_the_saver_of_its_graph(tmp_path: Path) -> None:
    built = build_graph(tiny(), "validation", train=True)
    checkpoints = runs.directory(tmp_path).checkpoints
    for _ in range(2):  # Before there is a checkpoint, and after.
        assert resuming_saver(built, ClusterConfig(), checkpoints, pytest.fail) is built.saver
        runs.run(tmp_path)
