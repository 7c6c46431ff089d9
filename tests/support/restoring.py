"""Sources on disk, variables of a graph, and a restorer from the ones to the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from runner.checkpoints.open import open_reader
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec, TensorSpec
from runner.config.choices import StateClass
from runner.errors import Problem
from runner.planning.plan import Assignment, RestorationPlan
from runner.planning.variables import Partition, VariableSpec
from runner.restoration.restorer import Restorer
from runner.rules.source_tensors import SourceTensor

tf1 = tf.compat.v1
Values = Mapping[str, np.ndarray[Any, Any]]


def save_bundle(path: Path, values: Values) -> str:
    with tf.Graph().as_default(), tf1.Session() as session:
        variables = {
            name: tf1.get_variable(f"v{index}", initializer=value)
            for index, (name, value) in enumerate(values.items())
        }
        session.run(tf1.global_variables_initializer())
        saver = tf1.train.Saver(variables)
        return str(saver.save(session, str(path / "model"), write_meta_graph=False))


def save_npz(path: Path, values: Values) -> str:
    path.mkdir(parents=True, exist_ok=True)
    np.savez(path / "weights.npz", **dict[str, Any](values))
    return str(path / "weights.npz")


SAVE: dict[str, Callable[[Path, Values], str]] = {"bundle": save_bundle, "npz": save_npz}


def make_variable(name: str, value: Any, **kwargs: Any) -> tf.Variable:
    return tf1.get_variable(name, initializer=np.asarray(value, np.float32), **kwargs)


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Case:
    """Sources, variables, and which tensor each variable takes."""

    def __init__(self, **paths: str) -> None:
        self.paths = paths
        self.variables: dict[str, tf.Variable] = {}
        self.assignments: list[Assignment] = []
        self.finite: frozenset[str] = frozenset()

    def take(
        self,
        variable: tf.Variable,
        piece: tuple[str, str] | tuple[str, str, tuple[Any, ...]] | None = None,
        partition: Partition | None = None,
    ) -> Case:
        spec = TensorSpec(
            variable.op.name, tuple(variable.shape.as_list()), variable.dtype.base_dtype.name
        )
        source = piece and SourceTensor(
            piece[0],
            self.spec(piece[0]).tensors.get(piece[1], TensorSpec(piece[1], (), "float32")),
            piece[2] if len(piece) == 3 else (),
        )
        self.variables[spec.name] = variable
        self.assignments.append(
            Assignment(
                VariableSpec(spec, StateClass.weights, True, "Const", False, partition),
                piece[0] if piece else None,
                source,
            )
        )
        return self

    def spec(self, source: str) -> CheckpointSpec:
        return open_reader(self.paths[source]).spec()

    def plan(self, *problems: Problem) -> RestorationPlan:
        sources = {source: self.spec(source) for source in self.paths}
        return RestorationPlan(tuple(self.assignments), sources, {}, problems, finite=self.finite)

    def restorer(self, **kwargs: Any) -> Restorer:
        return Restorer(self.plan(), self.variables, self.open, **kwargs)

    def open(self, source: str) -> CheckpointReader:
        return open_reader(self.paths[source])

    def run(self, **kwargs: Any) -> dict[str, np.ndarray[Any, Any]]:
        restorer = self.restorer(**kwargs)
        with tf1.Session() as session:
            restorer.warm_start(session, None, None, init_fn=None)
            values: dict[str, np.ndarray[Any, Any]] = session.run(self.variables)
        return values
