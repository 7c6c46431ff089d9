from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.checkpoints.open import open_checkpoint
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec, TensorSpec
from runner.config import Initialize
from runner.errors import CheckpointError, PlanError, Problem
from runner.restoration.conversions import PadOrSlice, Slice, Transpose
from runner.restoration.plan import Assignment, RestorationPlan, SourceTensor
from runner.restoration.restorer import Restorer
from runner.restoration.variables import Partition, StateClass, VariableSpec

tf1 = tf.compat.v1
Values = Mapping[str, np.ndarray[Any, Any]]


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


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
        *pieces: tuple[str, str] | tuple[str, str, tuple[Any, ...]],
        partition: Partition | None = None,
    ) -> Case:
        spec = TensorSpec(
            variable.op.name, tuple(variable.shape.as_list()), variable.dtype.base_dtype.name
        )
        tensors = tuple(
            SourceTensor(
                piece[0],
                self.spec(piece[0]).tensors.get(piece[1], TensorSpec(piece[1], (), "float32")),
                piece[2] if len(piece) == 3 else (),
            )
            for piece in pieces
        )
        self.variables[spec.name] = variable
        self.assignments.append(
            Assignment(
                VariableSpec(spec, StateClass.WEIGHT, True, "Const", False, partition),
                pieces[0][0] if pieces else None,
                tensors,
            )
        )
        return self

    def spec(self, source: str) -> CheckpointSpec:
        return open_checkpoint(self.paths[source]).spec()

    def plan(self, *problems: Problem) -> RestorationPlan:
        sources = {source: self.spec(source) for source in self.paths}
        return RestorationPlan(tuple(self.assignments), sources, {}, problems, finite=self.finite)

    def restorer(self, **kwargs: Any) -> Restorer:
        return Restorer(self.plan(), self.variables, self.open, **kwargs)

    def open(self, source: str) -> CheckpointReader:
        return open_checkpoint(self.paths[source])

    def run(self, **kwargs: Any) -> dict[str, np.ndarray[Any, Any]]:
        restorer = self.restorer(**kwargs)
        init = restorer.build()
        with tf1.Session() as session:
            session.run(init)
            restorer.restore(session)
            values: dict[str, np.ndarray[Any, Any]] = session.run(self.variables)
        return values


@pytest.mark.parametrize("initialize", list(Initialize))
@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize("form", SAVE)
def test_variables_take_the_tensors_of_their_sources_and_others_their_initial_values(
    tmp_path: Path, form: str, use_resource: bool, initialize: Initialize
) -> None:
    cnn, lstm = {"x": numbers(3, 2)}, {"x": numbers(4, seed=1), "y": numbers(seed=2)}
    case = Case(cnn=SAVE[form](tmp_path / "a", cnn), lstm=SAVE[form](tmp_path / "b", lstm))
    kwargs = {"use_resource": use_resource}
    case.take(make_variable("a", np.zeros((3, 2)), **kwargs), ("cnn", "x"))
    case.take(make_variable("b", np.zeros(4), **kwargs), ("lstm", "x"))
    case.take(make_variable("c", 0.0, **kwargs), ("lstm", "y"))
    case.take(make_variable("head", [7.0], **kwargs))
    values = case.run(initialize=initialize, verify=True)
    np.testing.assert_array_equal(values["a"], cnn["x"])
    np.testing.assert_array_equal(values["b"], lstm["x"])
    np.testing.assert_array_equal(values["c"], lstm["y"])
    np.testing.assert_array_equal(values["head"], [7.0])


@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize("form", SAVE)
def test_one_tensor_may_be_given_to_two_variables_that_then_go_their_own_ways(
    tmp_path: Path, form: str, use_resource: bool
) -> None:
    case = Case(cnn=SAVE[form](tmp_path, {"x": numbers(100)}))
    for name in ("a", "b"):
        case.take(make_variable(name, np.zeros(100), use_resource=use_resource), ("cnn", "x"))
    added = case.variables["a"].assign_add(np.ones(100, np.float32))
    restorer = case.restorer(verify=True)
    init = restorer.build()
    with tf1.Session() as session:
        session.run(init)
        restorer.restore(session)
        session.run(added)
        values = session.run(case.variables)
    np.testing.assert_array_equal(values["a"], numbers(100) + 1)
    np.testing.assert_array_equal(values["b"], numbers(100))


def test_variables_made_from_one_initial_value_get_their_own_values(tmp_path: Path) -> None:
    case = Case(cnn=save_npz(tmp_path, {"x": numbers(2), "y": numbers(2, seed=1)}))
    initial = tf.zeros([2])
    case.take(tf1.get_variable("a", initializer=initial), ("cnn", "x"))
    case.take(tf1.get_variable("b", initializer=initial), ("cnn", "y"))
    values = case.run()
    np.testing.assert_array_equal(values["a"], numbers(2))
    np.testing.assert_array_equal(values["b"], numbers(2, seed=1))


@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize("form", SAVE)
def test_parts_of_a_partitioned_variable_take_their_slices(
    tmp_path: Path, form: str, use_resource: bool
) -> None:
    whole = numbers(5, 3)
    case = Case(cnn=SAVE[form](tmp_path, {"table": whole}))
    variable = tf1.get_variable(
        "table",
        [5, 3],
        initializer=tf1.zeros_initializer(),
        partitioner=tf1.fixed_size_partitioner(2),
        use_resource=use_resource,
    )
    for part in variable:
        info = part._get_save_slice_info()
        piece = ("cnn", "table", (Slice(tuple(info.var_offset), tuple(info.var_shape)),))
        case.take(part, piece, partition=Partition("table", (5, 3), tuple(info.var_offset)))
    values = case.run(initialize=Initialize.remaining, verify=True)
    np.testing.assert_array_equal(np.concatenate([values[p.op.name] for p in variable]), whole)


@pytest.mark.parametrize("form", SAVE)
def test_conversions_and_means_are_applied(tmp_path: Path, form: str) -> None:
    first, second = {"x": numbers(2, 3)}, {"x": numbers(2, 3, seed=1)}
    case = Case(a=SAVE[form](tmp_path / "a", first), b=SAVE[form](tmp_path / "b", second))
    case.take(make_variable("t", np.zeros((3, 2))), ("a", "x", (Transpose((1, 0)),)))
    case.take(make_variable("mean", np.zeros((2, 3))), ("a", "x"), ("b", "x"))
    values = case.run(verify=True)
    np.testing.assert_array_equal(values["t"], first["x"].T)
    np.testing.assert_allclose(values["mean"], (first["x"] + second["x"]) / 2, rtol=1e-6)


@pytest.mark.parametrize("initialize", list(Initialize))
def test_a_part_that_no_source_gives_keeps_its_initial_value(
    tmp_path: Path, initialize: Initialize
) -> None:
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    grown = make_variable("grown", [5.0, 5.0, 5.0])
    case.take(grown, ("cnn", "x", (PadOrSlice((2,), (3,), (0,)),)))
    values = case.run(initialize=initialize, verify=True)
    np.testing.assert_array_equal(values["grown"], [*numbers(2), 5.0])


def test_values_larger_than_a_chunk_and_a_batch_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.restoration.graph_restoration.CHUNK_BYTES", 20)
    monkeypatch.setattr("runner.restoration.streaming.BATCH_BYTES", 20)
    for form, save in SAVE.items():
        values = {f"x{size}": numbers(size, seed=size) for size in (1, 2, 3, 9, 1, 4)}
        case = Case(cnn=save(tmp_path / form, values))
        for name, value in values.items():
            case.take(make_variable(f"{form}_{name}", np.zeros(value.shape)), ("cnn", name))
        for name, value in case.run(verify=True).items():
            np.testing.assert_array_equal(value, values[name.removeprefix(f"{form}_")])


def test_only_initializers_that_are_not_overwritten_run(tmp_path: Path) -> None:
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    case.take(make_variable("restored", np.zeros(2)), ("cnn", "x"))
    case.take(make_variable("head", [1.0]))
    init = case.restorer(initialize=Initialize.remaining).build()
    with tf1.Session() as session:
        session.run(init)
        assert list(session.run(tf1.report_uninitialized_variables())) == [b"restored"]


def test_restoring_again_adds_no_operation_and_reads_the_source_again(
    tmp_path: Path, graph: tf.Graph
) -> None:
    bundle, npz = save_bundle(tmp_path, {"x": numbers(2)}), save_npz(tmp_path, {"x": numbers(3)})
    case = Case(cnn=bundle, lstm=npz)
    case.take(make_variable("a", np.zeros(2)), ("cnn", "x"))
    case.take(make_variable("b", np.zeros(3)), ("lstm", "x"))
    restorer = case.restorer(verify=True)
    init = restorer.build()
    assert restorer.build() is init
    graph.finalize()
    for _ in range(2):
        with tf1.Session() as session:
            session.run(init)
            restorer.restore(session)
            session.run(init)
            restorer.restore(session)
            np.testing.assert_array_equal(session.run(case.variables["a"]), numbers(2))


def test_a_plan_with_problems_is_not_carried_out(tmp_path: Path) -> None:
    case = Case(cnn=save_npz(tmp_path, {"x": numbers(2)}))
    restorer = Restorer(case.plan(Problem("something is wrong")), {}, case.open)
    with pytest.raises(PlanError, match="something is wrong"):
        restorer.build()


def test_restore_needs_build(tmp_path: Path) -> None:
    case = Case(cnn=save_npz(tmp_path, {"x": numbers(2)}))
    with tf1.Session() as session, pytest.raises(RuntimeError, match=r"Restorer\.build must be"):
        case.restorer().restore(session)


def test_a_source_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    case.take(make_variable("a", np.zeros(2)), ("cnn", "x"))
    restorer = case.restorer()
    Path(f"{case.paths['cnn']}.index").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"scaffolds\.cnn: .*model"):
        restorer.build()


def test_a_flipped_byte_is_an_error_that_names_scaffold_path_and_tensor(tmp_path: Path) -> None:
    case = Case(cnn=save_bundle(tmp_path, {"good": numbers(50), "bad": numbers(50, seed=1)}))
    case.take(make_variable("a", np.zeros(50)), ("cnn", "good"))
    case.take(make_variable("b", np.zeros(50)), ("cnn", "bad"))
    restorer = case.restorer()
    init = restorer.build()
    data = tmp_path / "model.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[content.find(numbers(50, seed=1).tobytes()) + 3] ^= 1
    data.write_bytes(content)
    with tf1.Session() as session:
        session.run(init)
        with pytest.raises(CheckpointError, match=r"scaffolds\.cnn: .*model") as caught:
            restorer.restore(session)
    assert "tensor bad" in str(caught.value)
    assert "tensor good" not in str(caught.value)


def test_a_truncated_npz_is_an_error_that_names_the_scaffold(tmp_path: Path) -> None:
    case = Case(cnn=save_npz(tmp_path, {"x": numbers(50)}))
    case.take(make_variable("a", np.zeros(50)), ("cnn", "x"))
    restorer = case.restorer()
    init = restorer.build()
    file = Path(case.paths["cnn"])
    content = bytearray(file.read_bytes())
    content[content.find(numbers(50).tobytes()) + 3] ^= 1
    file.write_bytes(content)
    with tf1.Session() as session:
        session.run(init)
        with pytest.raises(CheckpointError, match=r"scaffolds\.cnn: .*weights\.npz"):
            restorer.restore(session)


def test_a_bundle_that_changed_after_planning_is_refused(tmp_path: Path) -> None:
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    case.take(make_variable("a", np.zeros(2)), ("cnn", "x"))
    restorer = case.restorer()
    init = restorer.build()
    save_bundle(tmp_path, {"x": numbers(3)})
    with tf1.Session() as session:
        session.run(init)
        with pytest.raises(CheckpointError, match="has changed since it was planned"):
            restorer.restore(session)


def test_a_value_that_cannot_be_converted_names_variable_and_tensor(tmp_path: Path) -> None:
    case = Case(cnn=save_npz(tmp_path, {"x": numbers(2)}))
    case.take(make_variable("a", np.zeros((3, 2))), ("cnn", "x", (Transpose((1, 0)),)))
    with pytest.raises(CheckpointError, match=r"scaffolds\.cnn: a cannot be made of x"):
        case.run()


@pytest.mark.parametrize("form", SAVE)
def test_nan_in_a_source_is_a_warning(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    value = np.array([1, np.nan, np.inf], np.float32)
    case = Case(cnn=SAVE[form](tmp_path, {"x": value, "good": value[:1]}))
    case.take(make_variable("a", np.zeros(3)), ("cnn", "x"))
    case.take(make_variable("b", np.zeros(1)), ("cnn", "good"))
    with caplog.at_level(logging.WARNING):
        values = case.run(verify=True)
    assert "scaffolds.cnn: x in" in caplog.text
    assert "holds 2 NaN or infinite values" in caplog.text
    assert "good in" not in caplog.text
    np.testing.assert_array_equal(values["a"], value)


@pytest.mark.parametrize("form", SAVE)
def test_nan_in_a_source_that_must_be_finite_is_an_error(tmp_path: Path, form: str) -> None:
    case = Case(cnn=SAVE[form](tmp_path, {"x": np.array([1, np.nan], np.float32)}))
    case.finite = frozenset({"cnn"})
    case.take(make_variable("a", np.zeros(2)), ("cnn", "x"))
    with pytest.raises(CheckpointError, match=r"scaffolds\.cnn: x in .* holds 1 NaN or infinite"):
        case.run()


@pytest.mark.parametrize("form", SAVE)
def test_verification_names_a_variable_that_does_not_hold_its_source(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(cnn=SAVE[form](tmp_path, {"x": numbers(2), "y": numbers(2)}))
    case.take(make_variable("a", np.zeros(2)), ("cnn", "x"))
    case.take(make_variable("b", np.zeros(2)), ("cnn", "y"))
    change = case.variables["b"].assign([0.0, 1.0])
    restorer = case.restorer(verify=True)
    init = restorer.build()
    with tf1.Session() as session:
        session.run(init)
        report = restorer._non_finite.report

        def interfere(*arguments: Any) -> None:
            session.run(change)
            report(*arguments)

        # Between the restoration and the verification, as another thread would.
        monkeypatch.setattr(restorer._non_finite, "report", interfere)
        with pytest.raises(CheckpointError, match=r"b does not hold what was .* y of cnn"):
            restorer.restore(session)


def test_a_plan_that_restores_from_no_checkpoint_is_refused(tmp_path: Path) -> None:
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    case.take(make_variable("a", np.zeros(2)), ("cnn", "x"))
    plan = RestorationPlan(tuple(case.assignments), {"cnn": None}, {})
    restorer = Restorer(plan, case.variables, case.open)
    init = restorer.build()
    with tf1.Session() as session:
        session.run(init)
        with pytest.raises(ValueError, match="restores from cnn, which has no checkpoint"):
            restorer.restore(session)


def test_the_number_of_operations_grows_with_variables_only(
    tmp_path: Path, graph: tf.Graph
) -> None:
    case = Case(cnn=save_bundle(tmp_path, {f"x{each}": numbers(2) for each in range(50)}))
    for each in range(50):
        case.take(make_variable(f"a{each}", np.zeros(2)), ("cnn", f"x{each}"))
    before = len(graph.get_operations())
    case.restorer().build()
    assert len(graph.get_operations()) - before < 10


@pytest.mark.parametrize("initialize", list(Initialize))
@pytest.mark.parametrize("use_resource", [True, False])
def test_initialize_does_what_the_operation_does(
    tmp_path: Path, graph: tf.Graph, use_resource: bool, initialize: Initialize
) -> None:
    tf1.set_random_seed(5)
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    case.take(make_variable("restored", np.zeros(2), use_resource=use_resource), ("cnn", "x"))
    initializers = [tf1.glorot_uniform_initializer(), tf1.zeros_initializer()] * 20
    for number, each in enumerate(initializers):
        case.take(tf1.get_variable(f"v{number}", [3, 2], None, each, use_resource=use_resource))
    if use_resource:  # TensorFlow's own guard of such reads may fail for reference variables.
        with tf.control_dependencies([case.variables["v0"].initializer]):
            value = case.variables["v0"].read_value() + 1.0
        case.take(tf1.get_variable("reads", initializer=value))
    restorer = case.restorer(initialize=initialize)
    operation = restorer.build()
    graph.finalize()
    values = []
    for init in (lambda session: session.run(operation), restorer.initialize):
        with tf1.Session() as session:
            init(session)
            restorer.restore(session)
            values.append(session.run(case.variables))
    np.testing.assert_equal(*values)
    if use_resource:
        np.testing.assert_array_equal(values[1]["reads"], values[1]["v0"] + 1.0)


def test_initialize_needs_build(tmp_path: Path) -> None:
    case = Case(cnn=save_npz(tmp_path, {"x": numbers(2)}))
    with tf1.Session() as session, pytest.raises(RuntimeError, match="build must be called"):
        case.restorer().initialize(session)


def test_initialize_runs_nothing_where_everything_is_overwritten(tmp_path: Path) -> None:
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    case.take(make_variable("a", np.zeros(2)), ("cnn", "x"))
    restorer = case.restorer(initialize=Initialize.remaining)
    restorer.build()
    uninitialized = tf1.report_uninitialized_variables()
    with tf1.Session() as session:
        restorer.initialize(session)
        assert list(session.run(uninitialized)) == [b"a"]
        restorer.restore(session)
        assert not session.run(uninitialized).size


@pytest.mark.parametrize(
    ("raised", "expected", "match"),
    [
        (tf.errors.AbortedError, tf.errors.AbortedError, "lost"),
        (tf.errors.UnavailableError, tf.errors.UnavailableError, "lost"),
        (tf.errors.ResourceExhaustedError, CheckpointError, r"model cannot be restored\n.*lost"),
    ],
)
def test_an_error_that_is_no_damage_keeps_its_reason(
    tmp_path: Path, raised: type[Exception], expected: type[Exception], match: str
) -> None:
    case = Case(cnn=save_bundle(tmp_path, {"x": numbers(2)}))
    case.take(make_variable("a", np.zeros(2), use_resource=False), ("cnn", "x"))
    restorer = case.restorer()
    restorer.build()

    class Lost(tf.compat.v1.Session):
        def run(self, *_: Any, **__: Any) -> Any:
            raise raised(None, None, "lost")

    with Lost() as session, pytest.raises(expected, match=match):
        restorer.restore(session)
