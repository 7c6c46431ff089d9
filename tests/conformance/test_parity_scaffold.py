"""`runner.Scaffold` does what TensorFlow's does with the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.support.parity import Counting, assert_parity, plain
from tests.support.session_events import Events

FIELDS = (
    *("init_op", "init_feed_dict", "ready_op", "ready_for_local_init_op", "local_init_op"),
    *("local_init_feed_dict", "summary_op", "saver"),
)


def fields(scaffold: tf.train.Scaffold) -> dict[str, Any]:
    """Returns the fields of a scaffold, and whether it has an init_fn."""
    values = {name: plain(getattr(scaffold, name)) for name in FIELDS}
    is_saver = isinstance(values["saver"], tf.train.Saver)
    saver = sorted(values["saver"].as_saver_def().ListFields()) if is_saver else values["saver"]
    restored = [str(value) for _, value in saver] if is_saver else saver
    return {**values, "saver": restored, "init_fn": scaffold.init_fn is not None}


# Arguments of the constructor, from the model and the API.
ARGUMENTS: dict[str, Callable[[Counting, Any], dict[str, Any]]] = {
    "none": lambda model, api: {},
    "all": lambda model, api: {
        "init_op": tf.no_op("init"),
        "init_feed_dict": {model.feed: 1.0},
        "init_fn": lambda scaffold, session: None,
        "ready_op": tf.constant([], tf.string, name="ready"),
        "ready_for_local_init_op": tf.constant([], tf.string, name="ready_for_local"),
        "local_init_op": tf.no_op("local"),
        "summary_op": tf.summary.scalar("one", 1.0),
        "saver": tf.train.Saver([model.weight]),
        "local_init_feed_dict": {model.feed: 2.0},
    },
    "values of any class": lambda model, api: {
        "init_op": 2,
        "init_feed_dict": 3,
        "ready_op": 5,
        "ready_for_local_init_op": 6,
        "local_init_op": 7,
        "local_init_feed_dict": 8,
    },
    "no summary": lambda model, api: {"summary_op": None},
    "a copy": lambda model, api: {
        "copy_from_scaffold": api.Scaffold(init_op=tf.no_op("init"), summary_op=tf.no_op("summary"))
    },
    "a copy of TensorFlow's": lambda model, api: {
        "copy_from_scaffold": tf.train.Scaffold(local_init_op=tf.no_op("local"))
    },
    "a copy and more": lambda model, api: {
        "copy_from_scaffold": api.Scaffold(init_op=tf.no_op("init"), ready_op=tf.constant(["a"])),
        "init_op": tf.no_op("other"),
    },
    "a copy with an init_fn": lambda model, api: {
        "copy_from_scaffold": api.Scaffold(init_fn=lambda scaffold, session: None)
    },
    "a copy of a finalized one": lambda model, api: {
        "copy_from_scaffold": _with_default_saver(api)
    },
    "a copy of something else": lambda model, api: {"copy_from_scaffold": 1},
    "a deferred saver": lambda model, api: {"saver": tf.train.Saver(defer_build=True)},
    "a saver that is a string": lambda model, api: {"saver": "saver"},
    "an init_fn that is a string": lambda model, api: {"init_fn": "init"},
    "an unknown argument": lambda model, api: {"init": None},
}


def _with_default_saver(api: Any) -> tf.train.Scaffold:
    return api.Scaffold(saver=tf.train.Saver())


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name: str, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        scaffold = api.Scaffold(**ARGUMENTS[name](Counting(), api))
        before = fields(scaffold)
        finalized = scaffold.finalize()
        assert finalized is scaffold
        return [before, fields(scaffold), fields(scaffold.finalize())]

    assert_parity(case, tmp_path)


def _twice(key: str, make: Callable[[], Any]) -> None:
    for _ in range(2):
        tf.add_to_collection(key, make())


KEYS = tf.GraphKeys
GRAPHS: dict[str, Callable[[], Any]] = {
    "empty": lambda: None,
    "local variables": lambda: tf.get_local_variable("local", initializer=1.0),
    "tables": lambda: tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a"], [1]), -1
    ),
    "an init_op": lambda: tf.add_to_collection(KEYS.INIT_OP, tf.no_op("own_init")),
    "a local init_op": lambda: tf.add_to_collection(KEYS.LOCAL_INIT_OP, tf.no_op("own_local")),
    "a ready_op": lambda: tf.add_to_collection(KEYS.READY_OP, tf.constant(["own"], name="own")),
    "a saver": lambda: tf.add_to_collection(KEYS.SAVERS, tf.train.Saver()),
    "a summary_op": lambda: tf.add_to_collection(KEYS.SUMMARY_OP, tf.no_op("own_summary")),
    "two init_ops": lambda: _twice(KEYS.INIT_OP, tf.no_op),
    "two local init_ops": lambda: _twice(KEYS.LOCAL_INIT_OP, tf.no_op),
    "two ready_ops": lambda: _twice(KEYS.READY_OP, tf.no_op),
    "two savers": lambda: _twice(KEYS.SAVERS, tf.train.Saver),
    "two summary_ops": lambda: _twice(KEYS.SUMMARY_OP, tf.no_op),
    "finalized": lambda: tf.get_default_graph().finalize(),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_a_graph_holds(name: str, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        if name != "empty":
            Counting()
        GRAPHS[name]()
        first, second = api.Scaffold().finalize(), api.Scaffold()
        with tf.Session() as session:
            unready = session.run([first.ready_op, first.ready_for_local_init_op])
            session.run(first.init_op)
            session.run(first.local_init_op)
            ready = session.run([first.ready_op, first.ready_for_local_init_op])
        return [fields(first), fields(second.finalize()), unready, ready]

    assert_parity(case, tmp_path)


def test_an_init_fn_gets_its_scaffold_and_the_session(tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        def init_fn(scaffold: Any, session: Any) -> None:
            events.append(f"{scaffold is given} {type(session).__name__}")

        given = api.Scaffold(init_fn=init_fn)
        with tf.Session() as session:
            return given.init_fn(session)

    assert_parity(case, tmp_path)


STATIC = ("get_or_default", "default_local_init_op")


@pytest.mark.parametrize("name", STATIC)
def test_static_methods(name: str, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        Counting()
        arguments = ("scale", "scales", lambda: tf.constant(1.0)) if name == STATIC[0] else ()
        return [getattr(api.Scaffold, name)(*arguments) for _ in range(2)]

    assert_parity(case, tmp_path)
