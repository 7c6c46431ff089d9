"""The original `tf.estimator` on newer versions of TensorFlow, which shipped it until 2.15.

It is the package `tensorflow-estimator`, whose version is fixed. What TensorFlow no longer has
stands in here: names, and what they did in one process. The package is not changed, but for the
session in which it trains.

`tests/unit/internals/test_original_estimator.py` fails when TensorFlow changes any of it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NoReturn

import tensorflow as tf
from tensorflow.python import distribute
from tensorflow.python.util import tf_export

from runner.errors import ConfigError

PACKAGE = "tensorflow_estimator"
# TensorFlow's module that trained on several machines by a strategy; the original imports it.
COORDINATION = "tensorflow.python.distribute.estimator_training"
# TensorFlow's name of the mode in which every task runs the program.
_INDEPENDENT = "independent_worker"
# The package's module of Estimators on TPUs, which needs what TensorFlow no longer has.
TPUS = f"{PACKAGE}.python.estimator.tpu.tpu_estimator"


@functools.cache
def original_estimator() -> ModuleType:
    """Returns the public API of `tf.estimator`.

    Raises:
      ConfigError: when its package is not installed.
    """
    if PACKAGE not in sys.modules:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None:
            raise ConfigError.of(
                "the package tensorflow-estimator is not installed",
                "`model_fn` and runner.estimator use the original Estimator, which TensorFlow has "
                "not shipped since 2.16",
                "pip install 'runner[estimator]'",
            )
        # Its __init__ imports the API of TPUs, which is gone; nothing else needs it.
        sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    _stand_in_for_exports()
    if COORDINATION not in sys.modules:
        sys.modules[COORDINATION] = distribute.estimator_training = _coordination()
    sys.modules.setdefault(TPUS, _WithoutTpus(TPUS))
    return importlib.import_module(f"{PACKAGE}._api.v2.estimator")


def original_class() -> Any:
    """Returns the module of the class `Estimator`; parts of it are private."""
    original_estimator()
    return importlib.import_module(f"{PACKAGE}.python.estimator.estimator")


def train_in(session: Callable[..., Any]) -> None:
    """Makes Estimators train in the sessions of `session`, instead of TensorFlow's function.

    An Estimator has no place for another session. TensorFlow's module stays as it is, and what a
    program puts in place of the function there still counts.
    """
    module = original_class()
    training = module.training
    if isinstance(training, ModuleType):
        module.training = _Training(training, session)


class _Training:
    """TensorFlow's module `training` with another function for sessions."""

    def __init__(self, module: ModuleType, session: Callable[..., Any]) -> None:
        self._module, self._session = module, session
        self._stock = module.MonitoredTrainingSession

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return self._session if value is self._stock else value


def _stand_in_for_exports() -> None:
    """Adds the name under which the original registers its public names, which nothing reads."""
    if not hasattr(tf_export, "ESTIMATOR_API_NAME"):
        name = tf_export.ESTIMATOR_API_NAME = "estimator"
        for attributes, suffix in ((tf_export.API_ATTRS, ""), (tf_export.API_ATTRS_V1, "_v1")):
            names = type(attributes["tensorflow"])
            attributes[name] = names(f"_{name}_api_names{suffix}", f"_{name}_api_constants{suffix}")
    exports = importlib.import_module(f"{PACKAGE}.python.estimator.estimator_export")
    # Without the advice to use Keras, which every first use of a name would log.
    exports.estimator_export.__call__ = tf_export.api_export.__call__


def _coordination() -> ModuleType:
    """Returns what is left of the module: strategies train in one process."""
    module = ModuleType(COORDINATION)
    functions: dict[str, Any] = {
        "init_run_config": _init_run_config,
        "should_run_distribute_coordinator": _is_coordinated,
    }
    for name in ("train_and_evaluate", "estimator_train", "estimator_evaluate"):
        functions[name] = _refuse_several_machines
    vars(module).update(functions)
    return module


def _init_run_config(config: Any, tf_config: Mapping[str, Any]) -> None:
    """Reads `TF_CONFIG` into a `RunConfig` with distribution strategies."""
    preferred = config._experimental_distribute
    for name in ("train_distribute", "eval_distribute"):
        strategy = getattr(preferred, name, None)
        if strategy is not None:
            if getattr(config, name) is not None:
                raise ValueError(f"{name} and experimental_distribute.{name} are given: give one")
            setattr(config, f"_{name}", strategy)
    cluster = tf.train.ClusterSpec(
        getattr(preferred, "remote_cluster", None) or tf_config.get("cluster", {})
    )
    if cluster and "master" not in cluster.jobs and config.train_distribute:
        config._init_distributed_setting_from_environment_var({})
        config._cluster_spec = cluster
        config._distribute_coordinator_mode = _INDEPENDENT
    else:
        config._init_distributed_setting_from_environment_var(tf_config)
        config._maybe_overwrite_session_config_for_distributed_training()
        config._distribute_coordinator_mode = None


def _is_coordinated(config: Any) -> bool:
    # `config` may be a user's class.
    mode = getattr(config, "_distribute_coordinator_mode", None)
    return mode == _INDEPENDENT and bool(config.cluster_spec)


class _WithoutTpus(ModuleType):
    """Has a class for every name, so that modules that import some can be imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": _refuse_tpus})


def _refuse_tpus(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise ConfigError.of(
        f"{type(self).__name__} cannot be created",
        "TensorFlow removed the part of Estimators that trained on TPUs in 2.16",
        "use Estimator and EstimatorSpec",
    )


def _refuse_several_machines(*args: Any, **kwargs: Any) -> NoReturn:
    raise ConfigError.of(
        "an Estimator is to train on several machines by a distribution strategy",
        "TensorFlow has removed the part that coordinated them in 2.16",
        "unset TF_CONFIG to train by the strategy in one process, or leave the strategy out to "
        "train with parameter servers",
    )
