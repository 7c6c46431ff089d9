"""`runner.ChiefSessionCreator` and `WorkerSessionCreator` do what TensorFlow's do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.support.parity import Counting, assert_parity
from tests.support.session_events import Events, Model

# Arguments, from the API and a folder with a checkpoint.
CHIEFS: dict[str, Callable[[Any, Path], dict[str, Any]]] = {
    "none": lambda api, folder: {},
    "a scaffold": lambda api, folder: {"scaffold": api.Scaffold()},
    "TensorFlow's scaffold": lambda api, folder: {"scaffold": tf.train.Scaffold()},
    "a directory": lambda api, folder: {"checkpoint_dir": str(folder)},
    "a checkpoint": lambda api, folder: {
        "checkpoint_filename_with_path": str(folder / "model.ckpt-1")
    },
    "both": lambda api, folder: {
        "checkpoint_dir": str(folder),
        "checkpoint_filename_with_path": str(folder / "model.ckpt-1"),
    },
    "a directory that is not there": lambda api, folder: {"checkpoint_dir": str(folder / "a")},
    "a checkpoint that is not there": lambda api, folder: {
        "checkpoint_filename_with_path": str(folder / "model.ckpt-2")
    },
    "a configuration": lambda api, folder: {"config": tf.ConfigProto(allow_soft_placement=True)},
    "a target that is not there": lambda api, folder: {"master": "nowhere://a:1"},
    "a target that is None": lambda api, folder: {"master": None},
    "a scaffold that is a string": lambda api, folder: {"scaffold": "scaffold"},
    "a configuration that is a string": lambda api, folder: {"config": "config"},
    "a directory that is a number": lambda api, folder: {"checkpoint_dir": 3},
    "an unknown argument": lambda api, folder: {"saver": None},
}


# TensorFlow's own __del__ fails for a session that could not be made.
@pytest.mark.filterwarnings("ignore:Exception ignored in.*BaseSession")
@pytest.mark.parametrize("name", CHIEFS)
def test_chiefs(name: str, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        with tf.Graph().as_default(), tf.Session() as session:
            model, saver = Counting(), tf.train.Saver()
            session.run(tf.global_variables_initializer())
            session.run(model.train_op)
            saver.save(session, str(folder / "model.ckpt-1"))
        model = Counting()
        creator = api.ChiefSessionCreator(**CHIEFS[name](api, folder))
        values = []
        for _ in range(2):
            with creator.create_session() as session:
                values.append(session.run([model.step, model.train_op]))
        return values

    assert_parity(case, tmp_path)


def test_the_order_of_a_chief(tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        model = Model(api, events)
        creator = api.ChiefSessionCreator(model.scaffold, checkpoint_dir=str(folder))
        sessions = [creator.create_session() for _ in range(2)]
        same = sessions[0] is sessions[1]
        for session in sessions:
            session.close()
        return same

    assert assert_parity(case, tmp_path).events


WORKERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "none": lambda api: {},
    "a scaffold": lambda api: {"scaffold": api.Scaffold()},
    "a configuration": lambda api: {"config": tf.ConfigProto(allow_soft_placement=True)},
    "a long wait": lambda api: {"max_wait_secs": 60},
    "a scaffold that is a string": lambda api: {"scaffold": "scaffold"},
    "a wait that is a string": lambda api: {"max_wait_secs": "1"},
    "an unknown argument": lambda api: {"checkpoint_dir": "model"},
}


@pytest.mark.parametrize("name", WORKERS)
def test_workers(name: str, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        server = tf.train.Server.create_local_server()
        arguments = {"master": server.target, "max_wait_secs": 0, **WORKERS[name](api)}
        with tf.Graph().as_default():
            Counting()
            early = api.WorkerSessionCreator(master=server.target, max_wait_secs=0)
            with pytest.raises(tf.errors.DeadlineExceededError):
                early.create_session()
        model = Counting()
        with api.ChiefSessionCreator(master=server.target).create_session() as chief:
            chief.run(model.train_op)
            with api.WorkerSessionCreator(**arguments).create_session() as worker:
                return worker.run([model.step, model.train_op])

    assert_parity(case, tmp_path)


# The method of the session manager that makes a creator's sessions.
MANAGED = {"ChiefSessionCreator": "prepare_session", "WorkerSessionCreator": "wait_for_session"}


@pytest.mark.parametrize("kind", MANAGED)
def test_what_replaces_a_method_of_the_manager_counts(kind: str, tmp_path: Path) -> None:
    """As in Estimator's own tests, whose workers wait for no chief."""

    def case(api: Any, events: Events, folder: Path) -> Any:
        def ready(manager: Any, *args: Any, **kwargs: Any) -> tf.Session:
            events.append(f"{args} {sorted(kwargs)}")
            session = tf.Session()
            session.run(tf.global_variables_initializer())
            return session

        model = Counting()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(api.SessionManager, MANAGED[kind], ready)
            with getattr(api, kind)().create_session() as session:
                return session.run(model.train_op)

    assert assert_parity(case, tmp_path).events
