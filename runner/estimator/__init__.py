"""`tf.estimator` for programs that were written for it: `import runner`, `runner.estimator.X`.

- `spec`: `EstimatorSpec`, the result of a `model_fn`, and `ModeKeys`.
- `model_fn`: calls a `model_fn` for a mode, and returns the graph as a `runner.GraphSpec`.
- `estimator`, with its `results`, and `train_and_evaluate`: for programs that use an `Estimator`.
  It trains in a `MonitoredTrainingSession`, not in a run: without plan, journal and MLflow.
- `experimental`: hooks that end a training early, or evaluate while it runs.
- `run_config`, `exporters`, `export`: the arguments of the above, with TensorFlow's defaults.

It extends the rooms before it, and they import none of its modules: for a configuration with a
`model_fn`, `runner.graph.build` looks up `model_fn.ModelFnGraph` by its name.
"""

from runner.estimator import experimental, export
from runner.estimator.estimator import Estimator
from runner.estimator.exporters import BestExporter, Exporter, FinalExporter, LatestExporter
from runner.estimator.run_config import RunConfig, VocabInfo, WarmStartSettings
from runner.estimator.spec import EstimatorSpec, ModeKeys
from runner.estimator.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate

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
    "experimental",
    "export",
    "train_and_evaluate",
]
