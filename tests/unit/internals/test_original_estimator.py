"""TensorFlow still lacks what stands in for the original Estimator, and has all else it needs.

That it trains, evaluates, predicts and exports is shown in tests/unit/estimator.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf
from tensorflow.python import distribute
from tensorflow.python.distribute.distribute_config import DistributeConfig
from tensorflow.python.training import training
from tensorflow.python.util import tf_export

from runner.errors import ConfigError
from runner.internals.original_estimator import COORDINATION, original_class, original_estimator


def no_features() -> dict[str, Any]:
    return {}


def test_tensorflow_still_lacks_what_stands_in() -> None:
    original_estimator()
    found = importlib.machinery.PathFinder.find_spec(COORDINATION, [*distribute.__path__])
    assert found is None, "TensorFlow has a module that coordinates Estimators again"
    source = Path(inspect.getfile(tf_export)).read_text()
    assert "ESTIMATOR_API_NAME" not in source, "TensorFlow exports names for Estimator again"


def test_every_name_of_the_public_api_is_there() -> None:
    estimator = original_estimator()
    assert {"Estimator", "DNNClassifier", "BinaryClassHead", "add_metrics"} <= {*dir(estimator)}
    assert estimator.Estimator is original_class().EstimatorV2
    for part, name in (("experimental", "InMemoryEvaluatorHook"), ("export", "ExportOutput")):
        module = importlib.import_module(f"runner.estimator.{part}")
        assert getattr(module, name) is getattr(getattr(estimator, part), name)


def test_its_modules_can_be_imported_and_tpus_are_refused() -> None:
    original_estimator()
    library = importlib.import_module("tensorflow_estimator.python.estimator.estimator_lib")
    assert library.Estimator is original_class().Estimator
    with pytest.raises(ConfigError, match=r"TPUEstimator cannot be created\n.*TPUs"):
        library.TPUEstimator(no_features)


SIGNATURES: list[tuple[Callable[[Any], Any], list[str]]] = [
    (lambda module: module.Estimator._call_input_fn, ["self", "input_fn", "mode", "input_context"]),
    (
        lambda module: module.Estimator._call_model_fn,
        ["self", "features", "labels", "mode", "config"],
    ),
    (lambda module: module._assert_members_are_not_overridden, ["cls", "obj"]),
    (lambda module: module.estimator_util.parse_iterator_result, ["result"]),
]


@pytest.mark.parametrize(("find", "parameters"), SIGNATURES)
def test_private_functions_take_what_they_took(
    find: Callable[[Any], Any], parameters: list[str]
) -> None:
    assert list(inspect.signature(find(original_class())).parameters) == parameters


def test_what_a_program_puts_in_place_of_the_session_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from runner import estimator

    sessions: list[dict[str, Any]] = []

    class Session:
        def __init__(self, **arguments: Any) -> None:
            sessions.append(arguments)

        def __enter__(self) -> Session:
            return self

        def __exit__(self, *error: object) -> None:
            return None

        def should_stop(self) -> bool:
            return True

    def model_fn(features: Any, mode: str) -> Any:
        step = tf.compat.v1.train.get_global_step()
        return estimator.EstimatorSpec(mode, loss=tf.constant(1.0), train_op=step.assign_add(1))

    monkeypatch.setattr(training, "MonitoredTrainingSession", Session)
    estimator.Estimator(model_fn).train(no_features, steps=1)
    assert [session["is_chief"] for session in sessions] == [True]


STRATEGY = tf.distribute.OneDeviceStrategy("/cpu:0")
MACHINES = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'


def test_a_strategy_on_several_machines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = original_estimator()
    monkeypatch.setenv("TF_CONFIG", MACHINES)
    trained = estimator.Estimator(
        lambda features: None, config=estimator.RunConfig(train_distribute=STRATEGY)
    )
    with pytest.raises(ConfigError, match="several machines by a distribution strategy"):
        trained.train(no_features, steps=1)
    with pytest.raises(ConfigError, match="several machines by a distribution strategy"):
        estimator.train_and_evaluate(
            trained, estimator.TrainSpec(no_features), estimator.EvalSpec(no_features)
        )


def test_the_strategies_of_a_distribute_config_count() -> None:
    estimator = original_estimator()
    both = DistributeConfig(train_distribute=STRATEGY, eval_distribute=STRATEGY)
    config = estimator.RunConfig(experimental_distribute=both)
    assert (config.train_distribute, config.eval_distribute) == (STRATEGY, STRATEGY)
    with pytest.raises(ValueError, match="train_distribute"):
        estimator.RunConfig(train_distribute=STRATEGY, experimental_distribute=both)
    far = DistributeConfig(train_distribute=STRATEGY, remote_cluster={"worker": ["a:1", "b:1"]})
    remote = estimator.Estimator(
        lambda features: None, config=estimator.RunConfig(experimental_distribute=far)
    )
    with pytest.raises(ConfigError, match="several machines by a distribution strategy"):
        remote.train(no_features, steps=1)


def test_a_config_of_a_program_is_not_coordinated(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = original_estimator()
    ran: list[str] = []
    executor = mock.Mock(run=lambda: ran.append("run"))
    monkeypatch.setattr(_training(), "_TrainingExecutor", lambda **arguments: executor)
    trained = mock.Mock(spec=estimator.Estimator, config=mock.Mock(task_id=0, cluster_spec=True))
    estimator.train_and_evaluate(
        trained,
        mock.Mock(spec=estimator.TrainSpec),
        mock.Mock(spec=estimator.EvalSpec),
    )
    assert ran == ["run"]


def _training() -> Any:
    return importlib.import_module("tensorflow_estimator.python.estimator.training")


# One process for all: it imports TensorFlow.
USES = (
    "import runner; runner.estimator.Estimator",
    "from runner.estimator import RunConfig",
    "from runner.graph.build import graph_maker; from runner.config.schema import RunConfig\n"
    "graph_maker(RunConfig(model_fn={'_target_': 'my.model_fn'}))",
)
WITHOUT_THE_PACKAGE = """
import sys, importlib.util as util
find = util.find_spec
util.find_spec = lambda name, *args: None if "estimator" in name else find(name, *args)
from runner.errors import ConfigError
for use in sys.argv[1:]:
    try:
        exec(use, {})
    except ConfigError as error:
        print(error)
"""


def test_without_the_package_one_message_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_PACKAGE, *USES],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("the package tensorflow-estimator is not installed\n") == len(USES)
    assert done.stdout.count("  remedy: pip install 'runner[estimator]'\n") == len(USES)
