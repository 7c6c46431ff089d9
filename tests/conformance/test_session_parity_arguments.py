"""runner's classes take TensorFlow's arguments, and make the same of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_coordinator, one_device_strategy

import runner
from runner.errors import ConfigError
from tests.tiny.session_events import Events

# The classes of one side: TensorFlow's own, and ours in their place.
BOTH = pytest.mark.parametrize("api", [tf.train, runner], ids=["tensorflow", "runner"])
NAMES = [
    "ChiefSessionCreator",
    "MonitoredSession",
    "Scaffold",
    "SessionManager",
    "SingularMonitoredSession",
    "Supervisor",
    "WorkerSessionCreator",
]


@pytest.mark.parametrize("name", NAMES)
def test_classes_extend_tensorflows(name: str) -> None:
    assert issubclass(getattr(runner, name), getattr(tf.train, name))


@pytest.mark.parametrize("name", ["MonitoredTrainingSession", *NAMES])
def test_arguments_and_defaults_are_tensorflows_and_ours_follow(name: str) -> None:
    theirs = list(inspect.signature(getattr(tf.train, name)).parameters.values())
    ours = inspect.signature(getattr(runner, name)).parameters
    if any(one.kind is one.VAR_POSITIONAL for one in ours.values()):
        assert any(one.kind is one.VAR_KEYWORD for one in ours.values())
        return
    for index, parameter in enumerate(theirs):
        if name == "SessionManager":
            assert parameter.name in ours or "kwargs" in ours
            continue
        assert list(ours)[index] == parameter.name
        if type(parameter.default) is not object:  # TensorFlow's value for "not given".
            assert ours[parameter.name].default == parameter.default


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
    ],
    ids=str,
)
@pytest.mark.parametrize("with_directory", [True, False])
def test_stock_hooks_are_made_as_by_tensorflow(
    arguments: dict[str, Any], with_directory: bool, tmp_path: Path
) -> None:
    given = dict(arguments)
    if "summary_dir" in given:
        given["summary_dir"] = str(tmp_path / "elsewhere")

    def made(api: Any) -> list[Any]:
        with tf.Graph().as_default():
            tf.train.get_or_create_global_step()
            tf.summary.scalar("one", tf.constant(1.0))
            first, last = Events().hook("a"), Events().hook("b")
            session = api.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path / "model") if with_directory else None,
                chief_only_hooks=[first],
                hooks=[last],
                **given,
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
    """Inside the block TensorFlow's distribute coordinator is at work; gives its creators."""
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


@BOTH
@pytest.mark.parametrize("kind", ["MonitoredTrainingSession", "MonitoredSession"])
def test_the_distribute_coordinator_makes_the_session(api: Any, kind: str) -> None:
    config = tf.ConfigProto(operation_timeout_in_ms=12345)
    with tf.Graph().as_default(), coordinated(config) as creators:
        value = tf.get_variable("value", initializer=3.0)
        with getattr(api, kind)() as session:
            assert isinstance(session, tf.train.MonitoredSession)
            assert session.run(value) == 3.0
    (creator,) = creators
    assert creator._config.operation_timeout_in_ms == 12345


def test_the_coordinator_saves_as_it_decides(tmp_path: Path) -> None:
    with tf.Graph().as_default(), coordinated(tf.ConfigProto()):
        train_op = tf.train.get_or_create_global_step().assign_add(1)
        with runner.MonitoredTrainingSession(
            model_checkpoint_dir=str(tmp_path), save_checkpoint_steps=1, log_step_count_steps=None
        ) as session:
            session.run(train_op)
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-1")


def test_the_coordinator_makes_no_warm_start(tmp_path: Path) -> None:
    with (
        tf.Graph().as_default(),
        coordinated(tf.ConfigProto()),
        pytest.raises(ConfigError, match="under TensorFlow's distribute coordinator"),
    ):
        runner.MonitoredTrainingSession(
            pretrained_checkpoint_dirs=[tmp_path], pretrained_scaffolds=[runner.Scaffold()]
        )
