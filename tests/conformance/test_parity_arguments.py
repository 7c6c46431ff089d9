"""runner's classes take TensorFlow's arguments, and make the same of them."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_coordinator, one_device_strategy

import runner
from runner.errors import ConfigError
from tests.support.session_events import Events

NAMES = [
    "ChiefSessionCreator",
    "MonitoredSession",
    "Scaffold",
    "SessionManager",
    "SingularMonitoredSession",
    "Supervisor",
    "WorkerSessionCreator",
]


def signature(api: Any, name: str) -> list[inspect.Parameter]:
    """The parameters of a class or function, without annotations."""
    parameters = inspect.signature(getattr(api, name)).parameters.values()
    return [parameter.replace(annotation=parameter.empty) for parameter in parameters]


@pytest.mark.parametrize("name", ["MonitoredTrainingSession", "CachedSession", *NAMES])
def test_tensorflows_arguments_come_first_and_ours_are_keywords(name: str) -> None:
    theirs = signature(tf, "Session") if name == "CachedSession" else signature(tf.train, name)
    ours = signature(runner, name)
    assert ours[: len(theirs)] == theirs
    assert {parameter.kind for parameter in ours[len(theirs) :]} <= {inspect.Parameter.KEYWORD_ONLY}
    if name in NAMES:
        assert issubclass(getattr(runner, name), getattr(tf.train, name))


def positional(name: str, directory: Path) -> list[Any]:
    """Returns a value other than the default for every argument, in TensorFlow's order."""
    variable = tf.get_variable("variable", initializer=1.0)
    tf.train.get_or_create_global_step()
    init, local_init = tf.global_variables_initializer(), tf.no_op()
    ready = tf.report_uninitialized_variables()
    feed = {tf.placeholder_with_default(1.0, []): 2.0}
    saver, config = tf.train.Saver([variable]), tf.ConfigProto(operation_timeout_in_ms=60_000)
    scaffold = tf.train.Scaffold(init, saver=saver)
    hooks, options = [tf.train.StopAtStepHook(1)], tf.RunOptions(timeout_in_ms=60_000)
    graph, summary = tf.get_default_graph(), tf.no_op()
    path = str(directory)
    values: dict[str, list[Any]] = {
        "Scaffold": [init, feed, print, ready, ready, local_init, summary, saver, scaffold, feed],
        "SessionManager": [local_init, ready, ready, graph, 0.25, options, feed],
        "ChiefSessionCreator": [scaffold, "", config, path, None],
        "WorkerSessionCreator": [scaffold, "", config, 1],
        "MonitoredSession": [tf.train.ChiefSessionCreator(scaffold), hooks, 1],
        "SingularMonitoredSession": [hooks, scaffold, "", config, path, 1, None],
        "Supervisor": list(
            {
                "graph": graph,
                "ready_op": ready,
                "ready_for_local_init_op": ready,
                "is_chief": True,
                "init_op": init,
                "init_feed_dict": feed,
                "local_init_op": local_init,
                "logdir": path,
                "summary_op": None,
                "saver": saver,
                "global_step": None,
                "save_summaries_secs": 1,
                "save_model_secs": 0,
                "recovery_wait_secs": 0.25,
                "stop_grace_secs": 1,
                "checkpoint_basename": "other.ckpt",
                "session_manager": None,
                "summary_writer": None,
                "init_fn": print,
                "local_init_run_options": options,
            }.values()
        ),
        "MonitoredTrainingSession": list(
            {
                "master": "",
                "is_chief": True,
                "checkpoint_dir": path,
                "scaffold": scaffold,
                "hooks": hooks,
                "chief_only_hooks": [],
                "save_checkpoint_secs": 1,
                "save_summaries_steps": None,
                "save_summaries_secs": None,
                "config": config,
                "stop_grace_period_secs": 1,
                "log_step_count_steps": None,
                "max_wait_secs": 1,
                "save_checkpoint_steps": None,
                "summary_dir": path,
                "save_graph_def": False,
            }.values()
        ),
    }
    return values[name]


@pytest.mark.parametrize("name", ["MonitoredTrainingSession", *NAMES])
def test_positional_arguments_mean_what_they_mean_to_tensorflow(name: str, tmp_path: Path) -> None:
    def attributes(api: Any) -> dict[str, Any]:
        with tf.Graph().as_default():
            arguments = positional(name, tmp_path / "own")
            assert len(arguments) == len(signature(tf.train, name))
            hook_or_session = getattr(api, name)(*arguments)
            settings = {
                key: value for key, value in vars(hook_or_session).items() if _is_plain(value)
            }
            settings |= {
                key: value.name
                for key, value in vars(hook_or_session).items()
                if isinstance(value, (tf.Tensor, tf.Operation))
            }
            if isinstance(hook_or_session, tf.train.MonitoredSession):
                settings["hooks"] = [
                    (type(hook), _settings(hook)) for hook in hook_or_session._hooks
                ]
                hook_or_session.close()
            shutil.rmtree(tmp_path / "own", ignore_errors=True)
            return settings

    theirs, ours = attributes(tf.train), attributes(runner)
    assert {key: ours[key] for key in theirs} == theirs


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float, tf.ConfigProto, tf.RunOptions)) and value != ""


# TensorFlow's value for "not given" may be given.
DEFAULT = (
    inspect.signature(tf.train.MonitoredTrainingSession).parameters["save_summaries_secs"].default
)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"save_checkpoint_secs": None, "save_checkpoint_steps": None},
        {"save_checkpoint_steps": 2},
        {"save_checkpoint_secs": 3, "save_checkpoint_steps": None},
        {"save_summaries_secs": 3},
        {"save_summaries_steps": None, "save_summaries_secs": None},
        {"save_summaries_steps": 7},
        {"log_step_count_steps": None},
        {"log_step_count_steps": 0, "save_summaries_steps": -1, "save_checkpoint_secs": -1},
        {"summary_dir": "elsewhere"},
        {"save_graph_def": False},
        {"save_checkpoint_secs": DEFAULT, "log_step_count_steps": None},
        {"checkpoint_dir": None, "save_checkpoint_steps": 2},
        {"checkpoint_dir": None, "summary_dir": "elsewhere"},
    ],
    ids=lambda arguments: ", ".join(arguments),
)
def test_stock_hooks_are_made_as_by_tensorflow(
    arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def made(api: Any) -> list[Any]:
        with tf.Graph().as_default():
            tf.train.get_or_create_global_step()
            tf.summary.scalar("one", tf.constant(1.0))
            first, last = Events().hook("a"), Events().hook("b")
            session = api.MonitoredTrainingSession(
                **{"checkpoint_dir": str(tmp_path / "model"), **arguments},
                chief_only_hooks=[first],
                hooks=[last],
            )
            hooks = list(session._hooks)
            session.close()
        return [(type(hook), _settings(hook)) for hook in hooks]

    assert made(runner) == made(tf.train)


def _settings(hook: tf.train.SessionRunHook) -> dict[str, Any]:
    settings = {}
    for name in ("_timer", "_output_dir", "_checkpoint_dir", "_save_graph_def"):
        value: Any = getattr(hook, name, None)
        timed = hasattr(value, "_every_secs")
        settings[name] = (value._every_secs, value._every_steps) if timed else value
    return settings


@contextmanager
def coordinated(session_config: tf.ConfigProto) -> Iterator[list[Any]]:
    """Runs the block under TensorFlow's distribute coordinator; yields its creators."""
    context = distribute_coordinator._WorkerContext(
        one_device_strategy.OneDeviceStrategyV1("/cpu:0"), None, None, None, session_config
    )
    made: list[Any] = []
    make = context.session_creator

    def session_creator(*args: Any, **kwargs: Any) -> Any:
        made.append(make(*args, **kwargs))
        return made[-1]

    context.session_creator = session_creator
    with context:
        yield made


@pytest.mark.parametrize("api", [tf.train, runner], ids=["tensorflow", "runner"])
def test_the_distribute_coordinator_makes_the_session_and_saves(api: Any, tmp_path: Path) -> None:
    config = tf.ConfigProto(operation_timeout_in_ms=12345)
    with tf.Graph().as_default(), coordinated(config) as creators:
        train_op = tf.train.get_or_create_global_step().assign_add(1)
        with api.MonitoredSession() as session:
            assert isinstance(session, tf.train.MonitoredSession)
            assert session.run(train_op) == 1
    with tf.Graph().as_default(), coordinated(config) as more:
        train_op = tf.train.get_or_create_global_step().assign_add(1)
        with api.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), save_checkpoint_steps=1, log_step_count_steps=None
        ) as session:
            assert session.run(train_op) == 1
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-1")
    for (creator,) in (creators, more):
        assert creator._config.operation_timeout_in_ms == 12345


def test_the_coordinator_makes_no_warm_start(tmp_path: Path) -> None:
    with (
        tf.Graph().as_default(),
        coordinated(tf.ConfigProto()),
        pytest.raises(ConfigError, match="under TensorFlow's distribute coordinator"),
    ):
        runner.MonitoredTrainingSession(
            pretrained_checkpoint_dirs=[tmp_path], pretrained_scaffolds=[runner.Scaffold()]
        )
