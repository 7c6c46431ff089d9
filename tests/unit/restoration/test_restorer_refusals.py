"""What a restorer refuses, warns of and names."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.errors import CheckpointError, PlanError, Problem
from runner.restoration.conversions import Transpose
from runner.restoration.plan import RestorationPlan
from runner.restoration.restorer import Restorer
from tests.tiny.restoring import SAVE, Case, make_variable, numbers, save_bundle, save_npz

tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


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


def test_initialize_needs_build(tmp_path: Path) -> None:
    case = Case(cnn=save_npz(tmp_path, {"x": numbers(2)}))
    with tf1.Session() as session, pytest.raises(RuntimeError, match="build must be called"):
        case.restorer().initialize(session)


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
