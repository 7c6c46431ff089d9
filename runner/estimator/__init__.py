"""`tf.estimator` for programs that were written for it: `import runner`, `runner.estimator.X`.

- `spec`: `EstimatorSpec` and `ModeKeys`, what a `model_fn` returns.
- `run_config`, `train_and_eval_specs`, `exporters`, `export`, `warm_start`: TensorFlow's classes of
  these names, with their arguments, defaults and messages.
- `model_fn`: calls a `model_fn` for a mode, and returns the graph as a `runner.GraphSpec`.
- `estimator` with `evaluation` and `predictions`, `train_and_evaluate`: for programs that drive it
  from Python.

It extends the rooms before it, which do not know it: a `model_fn` of a configuration reaches it as
the `_target_` of a graph.
"""

from runner.estimator import export
from runner.estimator.estimator import Estimator
from runner.estimator.exporters import BestExporter, Exporter, FinalExporter, LatestExporter
from runner.estimator.run_config import RunConfig
from runner.estimator.spec import EstimatorSpec, ModeKeys
from runner.estimator.train_and_eval_specs import EvalSpec, TrainSpec
from runner.estimator.train_and_evaluate import train_and_evaluate
from runner.estimator.warm_start import VocabInfo, WarmStartSettings

__all__ = [
    "BestExporter",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "VocabInfo",
    "WarmStartSettings",
    "export",
    "train_and_evaluate",
]
