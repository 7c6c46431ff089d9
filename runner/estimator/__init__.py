"""`tf.estimator` for programs that were written for it: `import runner`, `runner.estimator.X`.

It is the original, of the package `tensorflow-estimator`, which `pip install 'runner[estimator]'`
installs: every name of `tf.estimator` as of TensorFlow 2.15.

- `estimator`: `Estimator`, which may start from several checkpoints as well. It trains in
  `runner.MonitoredTrainingSession`, not in a run: without a record and MLflow.
- `model_fn`: the graph of a configuration with a `model_fn`.

It extends the rooms before it, and they import none of its modules: `runner.graph.build` looks up
`model_fn.ModelFnGraph` by its name.
"""

import sys
from typing import Any

from runner.estimator.estimator import Estimator
from runner.internals.original_estimator import original_estimator

_ORIGINAL = original_estimator()
for _part in ("experimental", "export"):  # For `from runner.estimator.export import NAME`.
    sys.modules[f"{__name__}.{_part}"] = getattr(_ORIGINAL, _part)

__all__ = ["Estimator", *(name for name in dir(_ORIGINAL) if not name.startswith("_"))]


def __getattr__(name: str) -> Any:
    return getattr(_ORIGINAL, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
