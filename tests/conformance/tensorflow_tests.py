"""TensorFlow's own tests, with runner's classes in place of those that they extend.

TensorFlow's wheel does not contain its tests. With a checkout of its version:

    python -m tests.conformance.tensorflow_tests CHECKOUT/tensorflow/python/training [saver ...]

Each file runs unchanged and with runner's classes, in separate processes with the behaviour of
TensorFlow 1. Prints the counts and every test that ends differently; exits with 1 if there is one.
"""

from __future__ import annotations

import importlib.util
import sys
import unittest
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

FILES = (
    "session_manager",
    "monitored_session",
    "basic_session_run_hooks",
    "supervisor",
    "coordinator",
    "queue_runner",
    "saver",
)
NAMES = (
    "ChiefSessionCreator",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "Scaffold",
    "SessionManager",
    "SingularMonitoredSession",
    "Supervisor",
    "WorkerSessionCreator",
)


class Replaced:
    """A module of TensorFlow with some attributes replaced, for its tests."""

    def __init__(self, module: ModuleType, **attributes: Any) -> None:
        self._module = module
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def replace_classes(tests: ModuleType) -> None:
    """Gives a module of tests runner's classes, also for the sessions of its test cases."""
    import tensorflow.compat.v1 as tf
    from tensorflow.python.framework import test_util

    import runner
    from runner.hooks import StopAtStepHook

    def stop_at_step(num_steps: int | None = None, last_step: int | None = None) -> Any:
        if num_steps is None and last_step is not None:
            return StopAtStepHook(last_step)
        return tf.train.StopAtStepHook(num_steps, last_step)  # Runner's takes the last step only.

    ours = {getattr(tf.train, name): getattr(runner, name) for name in NAMES}
    ours |= {tf.Session: runner.CachedSession, tf.train.StopAtStepHook: stop_at_step}
    for name, module in list(vars(tests).items()):
        if isinstance(module, ModuleType) and module.__name__.startswith("tensorflow.python."):
            kinds = (type, FunctionType)
            named = {key: value for key, value in vars(module).items() if isinstance(value, kinds)}
            replaced = {key: ours[value] for key, value in named.items() if value in ours}
            if replaced:
                setattr(tests, name, Replaced(module, **replaced))
    test_util.ErrorLoggingSession.__bases__ = (runner.CachedSession,)


class Outcomes(unittest.TestResult):
    """The outcome of every test."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802 (unittest's name)
        """Records the outcome: a list of the result that has the test, or `passed`."""
        super().stopTest(test)
        for kind in ("failures", "errors", "skipped", "expectedFailures"):
            if any(failed is test for failed, _ in getattr(self, kind)):
                self.outcomes[test.id()] = kind
                return
        self.outcomes[test.id()] = "passed"


def outcomes(path: Path, with_runner: bool) -> dict[str, str]:
    """Runs the tests of a file and returns test -> outcome; for a separate process."""
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.FATAL)  # The tests provoke many errors.
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    tests = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tests)
    if with_runner:
        replace_classes(tests)
    result = Outcomes()
    unittest.defaultTestLoader.loadTestsFromModule(tests).run(result)
    return result.outcomes


def main(folder: str, *files: str) -> int:
    """Compares TensorFlow's classes with runner's, and returns the exit code."""
    different = 0
    for file in files or FILES:
        both = []
        for with_runner in (False, True):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                path = Path(folder, f"{file}_test.py")
                both.append(process.submit(outcomes, path, with_runner).result())
        theirs, ours = both
        passed = [sum(end == "passed" for end in endings.values()) for endings in both]
        print(f"{file}: of {len(theirs)} tests {passed[0]} pass, with runner {passed[1]}")
        for test in sorted({*theirs, *ours}):
            if theirs.get(test) != ours.get(test):
                different += 1
                print(f"  {test}: {theirs.get(test)}, with runner {ours.get(test)}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
