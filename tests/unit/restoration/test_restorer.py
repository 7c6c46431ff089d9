from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from runner.checkpoints.bundle import BundleReader
from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.config import ScaffoldConfig, VariablesConfig
from runner.errors import PlanError
from runner.restoration.plan import RestorationPlan, make_plan
from runner.restoration.restorer import SubsetRestorer, subset_restorers
from runner.restoration.variables import StateClass, VariableSpec


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """A checkpoint with a = 1, b = 2 and the matrix m."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("a", initializer=1.0)
        tf.get_variable("b", initializer=2.0)
        tf.get_variable("m", initializer=[[3.0, 4.0]])
        session.run(tf.global_variables_initializer())
        return str(tf.train.Saver().save(session, str(tmp_path / "model.ckpt")))


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def test_only_the_subset_is_restored(prefix: str) -> None:
    x, y = (tf.get_variable(name, initializer=-1.0) for name in "xy")
    restorer = SubsetRestorer(prefix, ["b"], [x])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        restorer.restore(session, prefix)
        assert session.run([x, y]) == [2.0, -1.0]


def test_one_tensor_may_go_to_several_variables(prefix: str) -> None:
    x, y = (tf.get_variable(name, initializer=-1.0) for name in "xy")
    restorer = SubsetRestorer(prefix, ["a", "a"], [x, y])
    with tf.Session() as session:
        restorer.restore(session, prefix)
        assert session.run([x, y]) == [1.0, 1.0]


def test_restoring_adds_nothing_to_the_graph(prefix: str) -> None:
    x = tf.get_variable("x", initializer=-1.0)
    restorer = SubsetRestorer(prefix, ["a"], [x])
    restorer.build()
    tf.get_default_graph().finalize()
    with tf.Session() as session:
        restorer.restore(session, prefix)
        restorer.restore(session, prefix)
        assert session.run(x) == 1.0


def test_a_tensor_of_another_shape_is_refused(prefix: str) -> None:
    x = tf.get_variable("x", initializer=-1.0)
    restorer = SubsetRestorer(prefix, ["m"], [x])
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        restorer.restore(session, prefix)


def test_a_lost_tensor_is_an_error(prefix: str) -> None:
    x = tf.get_variable("x", initializer=-1.0)
    restorer = SubsetRestorer(prefix, ["lost"], [x])
    with tf.Session() as session, pytest.raises(tf.errors.NotFoundError, match="lost"):
        restorer.restore(session, prefix)


def _spec(name: str) -> VariableSpec:
    return VariableSpec(TensorSpec(name, (), "float32"), StateClass.WEIGHT, True, "Const")


def _plan(prefix: str, **scaffolds: ScaffoldConfig) -> RestorationPlan:
    sources: dict[str, CheckpointSpec | None] = {
        name: BundleReader(prefix).spec() if config.checkpoint else None
        for name, config in scaffolds.items()
    }
    return make_plan([_spec("x/a"), _spec("y/b"), _spec("z")], scaffolds, sources)


def _scaffold(pattern: str, checkpoint: str | None, prefix: str) -> ScaffoldConfig:
    return ScaffoldConfig(VariablesConfig([pattern]), checkpoint, rename={prefix: ""})


def test_a_plan_becomes_one_restorer_for_each_scaffold_that_takes_something(prefix: str) -> None:
    variables = {name: tf.get_variable(name, initializer=-1.0) for name in ("x/a", "y/b", "z")}
    plan = _plan(
        prefix,
        first=_scaffold("x/*", prefix, "x/"),
        second=_scaffold("y/*", prefix, "y/"),
        initialised=ScaffoldConfig(VariablesConfig(["z"])),
    )
    restorers = subset_restorers(plan, variables)
    assert list(restorers) == ["first", "second"]
    assert restorers["second"].variables == (variables["y/b"],)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for restorer in restorers.values():
            restorer.restore(session, restorer.path)
        assert session.run(list(variables.values())) == [1.0, 2.0, -1.0]


def test_a_plan_with_problems_is_never_carried_out(prefix: str) -> None:
    plan = _plan(prefix, first=_scaffold("x/*", prefix, "y/"))
    with pytest.raises(PlanError, match="rename"):
        subset_restorers(plan, {})
