"""Graphs of tiny experiments, and sessions in which they train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow.compat.v1 as tf

from runner.config.schema import RunConfig
from runner.graph.build import build_graph
from runner.graph.built_graph import BuiltGraph, Training
from tests.samples.counter import UNOPTIMISED
from tests.support.configs import tiny


@dataclass
class Opened:
    """A graph in a session."""

    built: BuiltGraph
    session: tf.Session

    def run(self, fetches: Any) -> Any:
        return self.session.run(fetches)

    def train(self, steps: int = 1, value: str = "loss") -> list[float]:
        """Returns a value of each step."""
        training = training_of(self.built)
        fetches = (training.values[value], training.train_op)
        return [float(self.session.run(fetches)[0]) for _ in range(steps)]

    def values(self, *names: str) -> list[Any]:
        """Returns the values of variables."""
        values: list[Any] = self.session.run([self.built.variables[name] for name in names])
        return values

    def after_steps(self, name: str, steps: int) -> list[float]:
        """Returns the value of a scalar variable after each step."""
        values = []
        for _ in range(steps):
            self.train()
            values.append(float(self.values(name)[0]))
        return values

    def evaluate(self) -> dict[str, float]:
        """Returns the metrics of the graph's split."""
        return self.built.evaluation.evaluate(self.session)

    def save(self, folder: Path) -> str:
        """Returns the prefix of a new checkpoint."""
        prefix = str(folder / "model.ckpt")
        return str(self.built.saver.save(self.session, prefix, write_meta_graph=False))


def build(config: RunConfig | None = None, *, train: bool = True) -> BuiltGraph:
    """Builds a graph, by default that of the tiny experiment."""
    return build_graph(config or tiny(), "validation", train=train)


def training_of(built: BuiltGraph) -> Training:
    """Returns the training step of a graph that has one."""
    assert built.training is not None
    return built.training


@contextmanager
def opened(
    graph: BuiltGraph | RunConfig | None = None, *, restore: str | None = None, cpus: int = 1
) -> Iterator[Opened]:
    """Opens a session of a built graph or of a configuration's, with logical CPU devices.

    It is initialized, unless a checkpoint is given to restore.
    """
    built = graph if isinstance(graph, BuiltGraph) else build(graph)
    config = tf.ConfigProto(device_count={"CPU": cpus}, allow_soft_placement=True)
    config.MergeFrom(UNOPTIMISED)
    with built.graph.as_default(), tf.Session(config=config) as session:
        if restore is None:
            start = training_of(built).input_initializer
            session.run([tf.global_variables_initializer(), start])
        else:
            built.saver.restore(session, restore)
        session.run([tf.local_variables_initializer(), tf.tables_initializer()])
        yield Opened(built, session)
