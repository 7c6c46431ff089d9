"""`runner.MonitoredTrainingSession` does what TensorFlow's does with the same arguments."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_coordinator

from tests.support.parity import Counting, assert_parity, initialized_to
from tests.support.session_events import Events


def trained(api: Any, events: Events, folder: Path, **arguments: Any) -> Any:
    """Trains with hooks that note all calls, in a session that saves to `folder/model`."""
    model = Counting()
    directory = {"checkpoint_dir": str(folder / "model")}
    hooks = {"hooks": [events.hook("hook")], "chief_only_hooks": [events.hook("chief")]}
    return model.run(api.MonitoredTrainingSession(**{**directory, **hooks, **arguments}))


# Arguments by value; `Path`s are relative to the folder.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "no directory": {"checkpoint_dir": None},
    "an empty directory name": {"checkpoint_dir": ""},
    "no hooks": {"hooks": None, "chief_only_hooks": None},
    "empty hooks": {"hooks": [], "chief_only_hooks": ()},
    "save every second step": {"save_checkpoint_steps": 2},
    "save every step, and each second": {"save_checkpoint_steps": 1, "save_checkpoint_secs": None},
    "save in both ways": {"save_checkpoint_steps": 1, "save_checkpoint_secs": 1},
    "save nothing": {"save_checkpoint_steps": None, "save_checkpoint_secs": None},
    "save every 0 seconds": {"save_checkpoint_secs": 0},
    "save every -1 seconds": {"save_checkpoint_secs": -1},
    "save every 0 steps": {"save_checkpoint_steps": 0},
    "summaries every step": {"save_summaries_steps": 1},
    "summaries every hour": {"save_summaries_secs": 3600},
    "summaries in both ways": {"save_summaries_steps": 1, "save_summaries_secs": 1},
    "no summaries": {"save_summaries_steps": None, "save_summaries_secs": None},
    "summaries every 0 steps": {"save_summaries_steps": 0},
    "rate at every step": {"log_step_count_steps": 1},
    "no rate": {"log_step_count_steps": None},
    "rate every 0 steps": {"log_step_count_steps": 0},
    "no graph": {"save_graph_def": False, "save_checkpoint_steps": 1},
    "a grace period": {"stop_grace_period_secs": 1},
    "a configuration": {"config": tf.ConfigProto(operation_timeout_in_ms=60_000)},
    "a target of this process": {"master": ""},
    "a chief of no wait": {"max_wait_secs": 0},
    "an unknown argument": {"checkpoint": "model"},
    "hooks that are strings": {"hooks": ["hook"]},
    "chief's hooks that are strings": {"chief_only_hooks": ["hook"]},
    "hooks that are no list": {"hooks": 3},
    "a scaffold that is a string": {"scaffold": "scaffold"},
    "a scaffold that is a saver": {"scaffold": SimpleNamespace(saver=None)},
    "a configuration that is a string": {"config": "config"},
    "a configuration that is a dict": {"config": {"operation_timeout_in_ms": 1}},
    "a target that is a number": {"master": 3},
    "an unknown target": {"master": "nowhere://a:1"},
    "a directory that is a number": {"checkpoint_dir": 3},
    "a directory that is a list": {"checkpoint_dir": ["model"]},
    "steps that are a string": {"save_checkpoint_steps": "2"},
    "seconds that are a string": {"save_checkpoint_secs": "2"},
    "a rate that is a string": {"log_step_count_steps": "2"},
    "summaries that are a string": {"save_summaries_steps": "2"},
    "a grace period that is a string": {"stop_grace_period_secs": "2"},
}


# TensorFlow's own __del__ fails for a session that could not be made.
@pytest.mark.filterwarnings("ignore:Exception ignored in.*BaseSession")
@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(name: str, tmp_path: Path) -> None:
    assert_parity(partial(trained, **ARGUMENTS[name]), tmp_path)


PATHS: dict[str, Callable[[Path], Any]] = {
    "a Path": lambda folder: folder,
    "bytes": os.fsencode,
    "with a slash at its end": "{}/".format,
    "with brackets": lambda folder: str(folder / "a[b]"),
    "with spaces and unicode": lambda folder: str(folder / "a ü"),
    "nested, to be made": lambda folder: str(folder / "a" / "b"),
    "a file": lambda folder: str((folder / "file").write_text("") or folder / "file"),
}


@pytest.mark.parametrize("key", ["checkpoint_dir", "summary_dir"])
@pytest.mark.parametrize("name", PATHS)
def test_directories(name: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # TensorFlow writes summaries for bytes into a relative folder.

    def case(api: Any, events: Events, folder: Path) -> Any:
        return trained(api, events, folder, **{key: PATHS[name](folder)}, log_step_count_steps=1)

    assert_parity(case, tmp_path)


# Scaffolds, from the model.
SCAFFOLDS: dict[str, Callable[[Counting], dict[str, Any]]] = {
    "init_op": lambda model: {"init_op": tf.variables_initializer([model.step, model.weight])},
    "init_op with a feed": lambda model: {
        "init_op": initialized_to(model.weight, model.feed),
        "init_feed_dict": {model.feed: 5.0},
    },
    "init_op of too little": lambda model: {"init_op": model.step.initializer},
    "init_fn": lambda model: {"init_fn": lambda scaffold, session: model.weight.load(7.0, session)},
    "init_fn of one argument": lambda model: {"init_fn": lambda session: None},
    "init_fn that fails": lambda model: {"init_fn": lambda scaffold, session: 1 // 0},
    "init_fn that is a string": lambda model: {"init_fn": "init"},
    "ready_op": lambda model: {"ready_op": tf.constant([], tf.string)},
    "ready_op that is never ready": lambda model: {"ready_op": tf.constant(["weight"])},
    "ready_op of a number": lambda model: {"ready_op": tf.constant(1)},
    "not ready for the local init": lambda model: {
        "ready_for_local_init_op": tf.constant(["weight"])
    },
    "local_init_op": lambda model: {"local_init_op": tf.no_op()},
    "local_init_op with a feed": lambda model: {
        "local_init_op": model.weight.assign(model.feed).op,
        "local_init_feed_dict": {model.feed: 5.0},
    },
    "summary_op": lambda model: {"summary_op": tf.summary.scalar("product", model.product)},
    "saver of some variables": lambda model: {"saver": tf.train.Saver([model.step])},
    "saver without the step": lambda model: {"saver": tf.train.Saver([model.weight])},
    "saver that keeps one": lambda model: {"saver": tf.train.Saver(max_to_keep=1)},
    "saver of V1": lambda model: {
        "saver": tf.train.Saver(write_version=tf.train.SaverDef.V1, sharded=True)
    },
    "saver that is a string": lambda model: {"saver": "saver"},
}


@pytest.mark.parametrize("name", SCAFFOLDS)
def test_scaffolds(name: str, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        results = []
        for _ in range(2):  # The second session resumes.
            with tf.Graph().as_default():
                model = Counting()
                arguments = SCAFFOLDS[name](model)
                # A saver may leave the weight out, whose initial value then counts again.
                session = api.MonitoredTrainingSession(
                    checkpoint_dir=str(folder),
                    scaffold=api.Scaffold(**arguments),
                    save_checkpoint_steps=1,
                    save_summaries_steps=1,
                    log_step_count_steps=None,
                )
                results.append(model.run(session, steps=2))
        return results

    assert_parity(case, tmp_path)


# What is in `checkpoint_dir` before.
def _removed(folder: Path) -> None:
    for path in folder.glob("model.ckpt-2*"):
        path.unlink()


def _damaged(folder: Path) -> None:
    (folder / "model.ckpt-2.index").write_bytes(b"damaged")


def _without_data(folder: Path) -> None:
    (folder / "model.ckpt-2.data-00000-of-00001").unlink()


def _without_state(folder: Path) -> None:
    (folder / "checkpoint").unlink()


def _empty_state(folder: Path) -> None:
    (folder / "checkpoint").write_text("")


def _elsewhere(folder: Path) -> None:
    (folder / "checkpoint").write_text('model_checkpoint_path: "elsewhere/model.ckpt-1"')


def _older(folder: Path) -> None:
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1"')


LEFT: dict[str, Callable[[Path], Any]] = {
    "all of it": lambda folder: None,
    "the newest is gone": _removed,
    "the newest is damaged": _damaged,
    "the newest has no data": _without_data,
    "no state": _without_state,
    "an empty state": _empty_state,
    "a state that leads elsewhere": _elsewhere,
    "a state that names an older one": _older,
}


@pytest.mark.parametrize("name", LEFT)
def test_what_a_session_finds(name: str, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        arguments = {"checkpoint_dir": str(folder), "save_checkpoint_steps": 1}
        with tf.Graph().as_default():
            model = Counting()
            model.run(tf.train.MonitoredTrainingSession(**arguments), steps=2)
        LEFT[name](folder)
        return Counting().run(api.MonitoredTrainingSession(**arguments), steps=1)

    assert_parity(case, tmp_path)


CHANGES: dict[str, Callable[[], Any]] = {
    "another shape": lambda: tf.get_variable("weight", [2]),
    "another dtype": lambda: tf.get_variable("weight", [], tf.float64),
    "a further variable": lambda: (
        tf.get_variable("weight", initializer=1.0),
        tf.get_variable("more", initializer=1.0),
    ),
    "fewer variables": lambda: None,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_model_that_has_changed(name: str, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        arguments = {"checkpoint_dir": str(folder), "save_checkpoint_steps": 1}
        with tf.Graph().as_default():
            Counting().run(tf.train.MonitoredTrainingSession(**arguments), steps=2)
        step = tf.train.get_or_create_global_step()
        CHANGES[name]()
        with api.MonitoredTrainingSession(**arguments) as session:
            return session.run(step)

    assert_parity(case, tmp_path)


def _two_savers() -> None:
    Counting()
    for _ in range(2):
        tf.add_to_collection(tf.GraphKeys.SAVERS, tf.train.Saver())


GRAPHS: dict[str, Callable[[], Any]] = {
    "an empty graph": lambda: None,
    "no global step": lambda: tf.get_variable("weight", initializer=1.0),
    "two savers": _two_savers,
    "a finalized graph": lambda: (Counting(), tf.get_default_graph().finalize()),
    "two steps": lambda: [
        tf.add_to_collection(tf.GraphKeys.GLOBAL_STEP, tf.get_variable(name, initializer=0))
        for name in "ab"
    ],
}


@pytest.mark.parametrize("directory", [None, "model"])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str, directory: str | None, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        GRAPHS[name]()
        checkpoint_dir = None if directory is None else str(folder / directory)
        api.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir).close()

    assert_parity(case, tmp_path)


def test_workers(tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        server = tf.train.Server.create_local_server()
        results: list[Any] = []
        with tf.Graph().as_default():
            Counting()
            with pytest.raises(tf.errors.DeadlineExceededError):
                api.MonitoredTrainingSession(server.target, is_chief=False, max_wait_secs=0)
        model = Counting()
        with api.MonitoredTrainingSession(server.target, checkpoint_dir=str(folder)) as chief:
            results += chief.run([model.train_op, model.product])
            worker = api.MonitoredTrainingSession(
                server.target,
                is_chief=False,
                checkpoint_dir=str(folder / "worker"),
                hooks=[events.hook("hook")],
                chief_only_hooks=[events.hook("chief")],
                save_checkpoint_steps=1,
            )
            return [*results, *model.run(worker)]

    assert_parity(case, tmp_path)


def _coordinated(
    api: Any, events: Events, folder: Path, context: Callable[[], Any], **arguments: Any
) -> Any:
    """Trains in a context of TensorFlow's distribute coordinator."""
    model = Counting()
    arguments = {"checkpoint_dir": str(folder), "hooks": [events.hook("hook")], **arguments}
    with context():
        return model.run(
            api.MonitoredTrainingSession(
                **arguments,
                chief_only_hooks=[events.hook("chief")],
                save_checkpoint_steps=1,
                save_summaries_steps=1,
                log_step_count_steps=1,
            )
        )


def _context(task: tuple[Any, Any] = (None, None), **decisions: bool) -> Any:
    """Returns the context of a task: which strategy it has, and what the coordinator decides."""
    allowed = {
        "experimental_between_graph": False,
        "experimental_should_init": True,
        "should_checkpoint": True,
        "should_save_summary": True,
    }
    strategy = SimpleNamespace(extended=SimpleNamespace(**{**allowed, **decisions}))
    config = tf.ConfigProto(operation_timeout_in_ms=60_000)
    return distribute_coordinator._WorkerContext(strategy, None, *task, config)


COORDINATED: dict[str, dict[str, Any]] = {
    "it may do everything": {"context": _context},
    "it may not save": {"context": partial(_context, should_checkpoint=False)},
    "it may not write summaries": {"context": partial(_context, should_save_summary=False)},
    "it may do neither": {
        "context": partial(_context, should_checkpoint=False, should_save_summary=False)
    },
    "another directory of summaries": {"context": _context, "summary_dir": "summaries"},
    "a worker": {"context": partial(_context, ("worker", 1)), "is_chief": False},
    "no directory": {"context": _context, "checkpoint_dir": None},
}


@pytest.mark.parametrize("name", COORDINATED)
def test_the_coordinator_decides(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        monkeypatch.chdir(folder)
        return _coordinated(api, events, folder, **COORDINATED[name])

    assert_parity(case, tmp_path)


@pytest.mark.parametrize("devices", [1, 2])
def test_v1_checkpoints_of_a_shard_for_each_device(devices: int, tmp_path: Path) -> None:
    def case(api: Any, events: Events, folder: Path) -> Any:
        steps = []
        for _ in range(2):
            with tf.Graph().as_default():
                with tf.device("/cpu:0"):
                    train_op = tf.train.get_or_create_global_step().assign_add(1)
                with tf.device(f"/cpu:{devices - 1}"):
                    tf.get_variable("weight", initializer=1.0)
                saver = tf.train.Saver(sharded=True, write_version=tf.train.SaverDef.V1)
                with api.MonitoredTrainingSession(
                    checkpoint_dir=str(folder),
                    scaffold=api.Scaffold(saver=saver),
                    config=tf.ConfigProto(device_count={"CPU": devices}),
                ) as session:
                    steps.append(session.run(train_op))
        return steps

    outcome = assert_parity(case, tmp_path)
    assert outcome.result == [1, 2]
    assert f"model.ckpt-2-0000{devices - 1}-of-0000{devices}" in outcome.files
