"""`tf.estimator` for programs that were written for it: `import runner`, `runner.estimator.X`.

It is the original, of the package `tensorflow-estimator`, which `pip install 'runner[estimator]'`
installs: every name of `tf.estimator` as of TensorFlow 2.15.

- `estimator`: `Estimator`, which may start from several checkpoints as well. It trains in
  `runner.MonitoredTrainingSession`, not in a run: without a record and MLflow.
- `model_fn`: the graph of a configuration with a `model_fn`.

It extends the rooms before it, and they import none of its modules: `runner.graph.build` looks up
`model_fn.ModelFnGraph` by its name.
"""

from typing import Any

from runner.estimator.estimator import Estimator
from runner.internals.estimator import original_estimator

_ORIGINAL = original_estimator()

__all__ = ["Estimator", *(name for name in dir(_ORIGINAL) if not name.startswith("_"))]


def __getattr__(name: str) -> Any:
    try:
        return getattr(_ORIGINAL, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
