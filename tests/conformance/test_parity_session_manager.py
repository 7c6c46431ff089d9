"""`runner.SessionManager` does what TensorFlow's does with the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.support.parity import Counting, assert_parity, initialized_to
from tests.support.session_events import Events


class Saved(Counting):
    """A graph, and a directory with its checkpoint of step 1."""

    def __init__(self, folder: Path) -> None:
        with tf.Graph().as_default():
            model, saver = Counting(), tf.train.Saver()
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                session.run([model.train_op, model.weight.assign(5.0)])
                self.path = saver.save(session, str(folder / "saved" / "model.ckpt-1"))
        super().__init__()
        self.folder, self.directory = folder, str(folder / "saved")
        self.init = tf.global_variables_initializer()
        self.saver = tf.train.Saver()
        self.ready = tf.report_uninitialized_variables()
        self.unready = tf.constant(["weight"])

    def load(self, session: tf.Session) -> None:
        self.weight.load(7.0, session)


Arguments = Callable[[Saved], dict[str, Any]]
# Arguments of the constructor.
MANAGERS: dict[str, Arguments] = {
    "none": lambda model: {},
    "ready_op": lambda model: {"ready_op": model.ready},
    "a ready_op that is never ready": lambda model: {"ready_op": model.unready},
    "a ready_op of a number": lambda model: {"ready_op": tf.constant(1)},
    "a ready_op that is a string": lambda model: {"ready_op": "ready"},
    "not ready for the local init": lambda model: {
        "local_init_op": tf.no_op(),
        "ready_for_local_init_op": model.unready,
    },
    "ready for the local init": lambda model: {
        "local_init_op": model.weight.assign(8.0).op,
        "ready_for_local_init_op": tf.report_uninitialized_variables([model.step]),
        "ready_op": model.ready,
    },
    "a local init with a feed": lambda model: {
        "local_init_op": model.weight.assign(model.feed).op,
        "local_init_feed_dict": {model.feed: 6.0},
    },
    "options of the local init": lambda model: {
        "local_init_op": tf.no_op(),
        "local_init_run_options": tf.RunOptions(timeout_in_ms=60_000),
    },
    "the graph": lambda model: {"graph": tf.get_default_graph()},
    "another graph": lambda model: {"graph": tf.Graph()},
    "a wait": lambda model: {"recovery_wait_secs": 0.01},
    "a wait that is a string": lambda model: {"recovery_wait_secs": "1"},
    "an unknown argument": lambda model: {"ready": model.ready},
}
# Arguments of `prepare_session`.
PREPARED: dict[str, Arguments] = {
    "init_op": lambda model: {"init_op": model.init},
    "nothing": lambda model: {},
    "init_op with a feed": lambda model: {
        "init_op": initialized_to(model.weight, model.feed),
        "init_feed_dict": {model.feed: 6.0},
    },
    "init_fn": lambda model: {"init_op": model.init, "init_fn": model.load},
    "init_fn alone": lambda model: {"init_fn": model.load},
    "init_fn that fails": lambda model: {"init_op": model.init, "init_fn": lambda session: 1 // 0},
    "init_fn that is a string": lambda model: {"init_op": model.init, "init_fn": "init"},
    "init_op that is a string": lambda model: {"init_op": "unknown"},
    "a directory": lambda model: {"saver": model.saver, "checkpoint_dir": model.directory},
    "a directory, and an init_op": lambda model: {
        "saver": model.saver,
        "checkpoint_dir": model.directory,
        "init_op": model.init,
        "init_fn": model.load,
    },
    "a directory without a saver": lambda model: {
        "checkpoint_dir": model.directory,
        "init_op": model.init,
    },
    "a checkpoint": lambda model: {
        "saver": model.saver,
        "checkpoint_filename_with_path": model.path,
    },
    "a checkpoint that is not there": lambda model: {
        "saver": model.saver,
        "checkpoint_filename_with_path": f"{model.path}-2",
        "init_op": model.init,
    },
    "a directory and a checkpoint": lambda model: {
        "saver": model.saver,
        "checkpoint_dir": model.directory,
        "checkpoint_filename_with_path": model.path,
    },
    "an empty directory": lambda model: {
        "saver": model.saver,
        "checkpoint_dir": str(model.folder),
        "init_op": model.init,
    },
    "an empty directory, and a wait": lambda model: {
        "saver": model.saver,
        "checkpoint_dir": str(model.folder),
        "init_op": model.init,
        "wait_for_checkpoint": True,
        "max_wait_secs": 0,
    },
    "a configuration": lambda model: {
        "init_op": model.init,
        "config": tf.ConfigProto(allow_soft_placement=True),
    },
    "a configuration that is a string": lambda model: {"init_op": model.init, "config": "config"},
    "an unknown argument": lambda model: {"init_op": model.init, "init": None},
    "a target that is not there": lambda model: {
        "init_op": model.init,
        "master": "nowhere://a:1",
    },
}


@pytest.mark.parametrize("name", MANAGERS)
def test_arguments(name: str, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        model = Saved(folder)
        manager = api.SessionManager(**MANAGERS[name](model))
        with manager.prepare_session("", init_op=model.init) as session:
            return session.run([model.step, model.weight])

    assert_parity(case, tmp_path)


# TensorFlow's own __del__ fails for a session that could not be made.
@pytest.mark.filterwarnings("ignore:Exception ignored in.*BaseSession")
@pytest.mark.parametrize("name", PREPARED)
def test_prepare_session(name: str, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        model = Saved(folder)
        manager = api.SessionManager(ready_op=model.ready, recovery_wait_secs=0.01)
        with manager.prepare_session(**{"master": "", **PREPARED[name](model)}) as session:
            return [type(session) is tf.Session, *session.run([model.step, model.weight])]

    assert_parity(case, tmp_path)


RECOVERED = ("a directory", "a checkpoint", "a directory and a checkpoint", "an empty directory")


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("name", RECOVERED)
def test_recover_session(name: str, ready: bool, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        model = Saved(folder)
        manager = api.SessionManager(ready_op=model.ready if ready else model.unready)
        arguments = {key: value for key, value in PREPARED[name](model).items() if key != "init_op"}
        session, recovered = manager.recover_session("", **arguments)
        with session:
            return [recovered, session.run(model.ready)]

    assert_parity(case, tmp_path)


WAITS: dict[str, dict[str, Any]] = {
    "not at all": {"max_wait_secs": 0},
    "a moment": {"max_wait_secs": 0.05},
    "with a configuration": {"max_wait_secs": 0, "config": tf.ConfigProto()},
    "an unknown argument": {"secs": 1},
}


@pytest.mark.parametrize("initialized", [True, False])
@pytest.mark.parametrize("name", WAITS)
def test_wait_for_session(name: str, initialized: bool, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        server, model = tf.train.Server.create_local_server(), Counting()
        init, ready = tf.global_variables_initializer(), tf.report_uninitialized_variables()
        manager = api.SessionManager(ready_op=ready, recovery_wait_secs=0.01)
        if initialized:
            with tf.Session(server.target) as session:
                session.run(init)
        with manager.wait_for_session(server.target, **WAITS[name]) as session:
            return session.run([model.step, model.weight])

    assert_parity(case, tmp_path)
