"""Models with their checkpoints, and the ways to initialise and restore them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import runner
from runner.checkpoints.open import open_reader
from runner.checkpoints.reader import TensorSpec
from runner.config.choices import Initialize, StateClass
from runner.config.schema import ScaffoldConfig, VariablesConfig
from runner.planning.plan import LocatedSources, RestorationPlan, make_plan
from runner.planning.variables import Partition, VariableSpec
from runner.restoration.restorer import Restorer
from runner.session.cached_session import CachedSession

tf1 = tf.compat.v1
Variables = Mapping[str, tf.Variable]
Run = Callable[[tf.compat.v1.Session], object]


@dataclass(frozen=True)
class Case:
    """A model in parts that have one checkpoint each.

    Attributes:
      name: describes the case.
      shapes: part -> the shapes of its variables.
      cut: the number of slices of every variable; 1 for whole variables.
      kept: the number of these slices in the model.
    """

    name: str
    shapes: Mapping[str, tuple[tuple[int, ...], ...]]
    cut: int = 1
    kept: int = 1
    directory: Path = field(default=Path())

    def variables(self) -> dict[str, dict[str, tf.Variable]]:
        """Adds the variables to the default graph; part -> name -> variable."""
        cut = tf1.fixed_size_partitioner(self.cut) if self.cut > 1 else None
        variables: dict[str, dict[str, tf.Variable]] = {}
        for part, shapes in self.shapes.items():
            for index, shape in enumerate(shapes):
                variable = tf1.get_variable(
                    f"{part}/v{index}",
                    shape,
                    initializer=tf1.glorot_uniform_initializer(),
                    use_resource=True,
                    partitioner=cut,
                )
                slices = [variable] if cut is None else list(variable)[: self.kept]
                named = {variable.op.name: variable for variable in slices}
                variables.setdefault(part, {}).update(named)
        return variables

    def path(self, part: str) -> str:
        """Returns the path of a part's checkpoint."""
        return str(self.directory / part / "model")

    def save(self) -> None:
        """Writes the checkpoints, of the whole variables."""
        for part, shapes in self.shapes.items():
            (self.directory / part).mkdir(parents=True, exist_ok=True)
            random = np.random.default_rng(0)
            values = {
                f"{part}/v{index}": random.random(shape, np.float32)
                for index, shape in enumerate(shapes)
            }
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                names, tensors = list(values), list(values.values())
                holders = [tf1.placeholder(tf.float32, tensor.shape) for tensor in tensors]
                save = tf.raw_ops.SaveV2(
                    prefix=self.path(part),
                    tensor_names=names,
                    shape_and_slices=[""] * len(names),
                    tensors=holders,
                )
                session.run(save, dict(zip(holders, tensors, strict=True)))

    def plan(self, variables: Mapping[str, Variables]) -> RestorationPlan:
        """Plans to restore every variable from the checkpoint of its part."""
        specs = [_spec(variable) for variable in _all(variables)]
        scaffolds = {
            part: ScaffoldConfig(variables=VariablesConfig(include=[f"{part}/*"]))
            for part in self.shapes
        }
        sources = {part: open_reader(self.path(part)).spec() for part in self.shapes}
        return make_plan(specs, scaffolds, LocatedSources(sources))


def _spec(variable: tf.Variable) -> VariableSpec:
    info = variable._get_save_slice_info()
    partition = info and Partition(info.full_name, tuple(info.full_shape), tuple(info.var_offset))
    tensor = TensorSpec(variable.op.name, tuple(variable.shape.as_list()), "float32")
    return VariableSpec(tensor, StateClass.weights, True, "RandomUniform", partition=partition)


class Way:
    """A way to initialise and restore a case, with its graph and its kind of session."""

    def __init__(
        self,
        graph: tf.Graph,
        init: Run,
        restore: Run | None = None,
        session: type[tf.compat.v1.Session] = tf1.Session,
    ) -> None:
        self._graph, self._init, self._restore, self._session = graph, init, restore, session

    def seconds(self) -> float:
        """Does it in a new session; returns how long that took, without the session's closing."""
        with self._session(graph=self._graph) as session:
            start = time.perf_counter()
            self._init(session)
            if self._restore is not None:
                self._restore(session)
            return time.perf_counter() - start


def savers(case: Case) -> Way:
    """Initialises everything, then restores one Saver after the other, as people write it."""
    with tf.Graph().as_default() as graph:
        variables = case.variables()
        init = tf1.variables_initializer(_all(variables))
        savers = {part: tf1.train.Saver(list(named.values())) for part, named in variables.items()}

    def restore(session: tf.compat.v1.Session) -> None:
        for part, saver in savers.items():
            saver.restore(session, case.path(part))

    return Way(graph, lambda session: session.run(init), restore)


def init_from_checkpoint(case: Case) -> Way:
    """Lets `init_from_checkpoint` replace the initialisers, then runs them."""
    with tf.Graph().as_default() as graph:
        variables = case.variables()
        for part, named in variables.items():
            mapped: dict[str, Any] = {}
            for name, variable in named.items():
                info = variable._get_save_slice_info()
                if info is None:
                    mapped[name] = variable
                else:
                    mapped.setdefault(info.full_name, []).append(variable)
            tf1.train.init_from_checkpoint(case.path(part), mapped)
        init = tf1.variables_initializer(_all(variables))
    return Way(graph, lambda session: session.run(init))


def restorer(case: Case, initialize: Initialize) -> Way:
    """Runs the initialisers that the restorer asks for, then restores from all sources."""
    with tf.Graph().as_default() as graph:
        variables = case.variables()
        restorer = Restorer(
            case.plan(variables),
            {variable.op.name: variable for variable in _all(variables)},
            lambda part: open_reader(case.path(part)),
            initialize=initialize,
        )
        graph.finalize()

    def warm_start(session: tf.compat.v1.Session) -> None:
        restorer.warm_start(session, None, None, init_fn=None)

    return Way(graph, warm_start, session=CachedSession)


class Monitored(Way):
    """A monitored training session, timed until it is ready for its first step."""

    def __init__(self, graph: tf.Graph, create: Callable[[], Any]) -> None:
        self._graph, self._create = graph, create

    def seconds(self) -> float:
        """Creates it; returns how long that took."""
        with self._graph.as_default():
            start = time.perf_counter()
            session = self._create()
            taken = time.perf_counter() - start
            session.close()
        return taken


def monitored_init_fn(case: Case) -> Way:
    """TensorFlow's session, with an `init_fn` that restores one Saver after the other."""
    with tf.Graph().as_default() as graph:
        savers = {
            part: tf1.train.Saver(list(named.values())) for part, named in case.variables().items()
        }

    def init_fn(scaffold: Any, session: Any) -> None:
        for part, saver in savers.items():
            saver.restore(session, case.path(part))

    return Monitored(
        graph,
        lambda: tf1.train.MonitoredTrainingSession(scaffold=tf1.train.Scaffold(init_fn=init_fn)),
    )


def monitored_scaffolds(case: Case) -> Way:
    """The runner's session, with one scaffold per checkpoint."""
    with tf.Graph().as_default() as graph:
        scaffolds = [
            tf1.train.Scaffold(saver=tf1.train.Saver(list(named.values())))
            for named in case.variables().values()
        ]
    return Monitored(
        graph,
        lambda: runner.MonitoredTrainingSession(
            pretrained_checkpoint_dirs=[case.path(part) for part in case.shapes],
            pretrained_scaffolds=scaffolds,
        ),
    )


def _all(variables: Mapping[str, Variables]) -> list[tf.Variable]:
    return [variable for part in variables.values() for variable in part.values()]


WAYS: dict[str, Callable[[Case], Way]] = {
    "init + Saver.restore": savers,
    "init_from_checkpoint": init_from_checkpoint,
    "restorer": lambda case: restorer(case, Initialize.all),
    "restorer, remaining": lambda case: restorer(case, Initialize.remaining),
    "tensorflow, monitored, init_fn": monitored_init_fn,
    "runner, monitored, scaffolds": monitored_scaffolds,
}
