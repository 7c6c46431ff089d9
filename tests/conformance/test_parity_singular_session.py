"""`runner.SingularMonitoredSession` does what TensorFlow's does with the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.support import session_cases as cases
from tests.support.parity import Counting, assert_parity
from tests.support.session_cases import given
from tests.support.session_events import Events

KIND = "SingularMonitoredSession"
ARGUMENTS: dict[str, dict[str, Callable[[Any], Any]]] = {
    **cases.HOOKS,
    "a scaffold": {"scaffold": lambda api: api.Scaffold()},
    "TensorFlow's scaffold": {"scaffold": lambda api: tf.train.Scaffold()},
    "a scaffold that is a string": {"scaffold": given("scaffold")},
    "a configuration": {"config": given(tf.ConfigProto(allow_soft_placement=True))},
    "a target that is not there": {"master": given("nowhere://a:1")},
    "a directory that is not there": {"checkpoint_dir": given("/nowhere")},
    "a directory that is a number": {"checkpoint_dir": given(3)},
    "a checkpoint that is not there": {"checkpoint_filename_with_path": given("/nowhere/a")},
    "both a directory and a checkpoint": {
        "checkpoint_dir": given("/nowhere"),
        "checkpoint_filename_with_path": given("/nowhere/a"),
    },
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name: str, tmp_path: Path) -> None:
    assert_parity(cases.constructed(KIND, ARGUMENTS[name]), tmp_path)


@pytest.mark.parametrize("error", cases.ERRORS)
@pytest.mark.parametrize("stage", cases.STAGES)
def test_a_hook_that_fails(stage: str, error: str, tmp_path: Path) -> None:
    assert_parity(cases.failing(KIND, stage, error), tmp_path)


@pytest.mark.parametrize("name", cases.REQUESTS)
def test_what_hooks_ask_for(name: str, tmp_path: Path) -> None:
    assert_parity(cases.requesting(KIND, name), tmp_path)


@pytest.mark.parametrize("name", cases.RUNS)
def test_calls(name: str, tmp_path: Path) -> None:
    assert_parity(cases.running(KIND, name), tmp_path)


@pytest.mark.parametrize("error", cases.ERRORS)
def test_errors_in_the_block(error: str, tmp_path: Path) -> None:
    assert_parity(cases.ending(KIND, error), tmp_path)


SOURCES: dict[str, Callable[[Path, str], dict[str, Any]]] = {
    "a directory": lambda folder, saved: {"checkpoint_dir": str(folder)},
    "a checkpoint": lambda folder, saved: {"checkpoint_filename_with_path": saved},
    "both": lambda folder, saved: {
        "checkpoint_dir": str(folder),
        "checkpoint_filename_with_path": saved,
    },
    "a checkpoint of another name": lambda folder, saved: {
        "checkpoint_filename_with_path": f"{saved}-2"
    },
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_it_restores(name: str, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        with tf.Graph().as_default():
            model, saver = Counting(), tf.train.Saver()
            with api.SingularMonitoredSession() as session:
                session.run(model.train_op)
                saved = saver.save(session.raw_session(), str(folder / "model.ckpt-1"))
        model = Counting()
        session = api.SingularMonitoredSession(**SOURCES[name](folder, saved))
        assert isinstance(session.raw_session(), tf.Session)
        return model.run(session, steps=1)

    assert_parity(case, tmp_path)
