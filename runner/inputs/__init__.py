"""Data sets for `_target_`, with three splits of batches as `tf.data.Dataset`s.

- `npz`: `Npz`, the arrays of one file divided into splits.
- `tfrecord`: `TFRecord`, files of `tf.train.Example`s for each split.
- `feature_files`: files of features alone, to predict from.
- `generator`: `GeneratorData`, batches from Python generators.
- `fit_data`: `FitData`, whatever `keras.Model.fit` takes.
- `slices`: batches of sparse and ragged tensors.
- `data_digest`: what tells data apart.

A configuration names the four classes as `runner.inputs.CLASS`. They fulfil the contract `Data` of
`runner.graph.contracts`; this room knows nothing else of a run.
"""

from runner.inputs.fit_data import FitData
from runner.inputs.generator import GeneratorData
from runner.inputs.npz import Npz
from runner.inputs.tfrecord import TFRecord

__all__ = ["FitData", "GeneratorData", "Npz", "TFRecord"]
