"""Data sets for `_target_`, with three splits of batches as `tf.data.Dataset`s.

- `split_data`: `Npz` and `ImageFolder`, one collection of examples divided into splits.
- `tfrecord`: `TFRecord`, files of `tf.train.Example`s for each split.
- `feature_files`: files of features alone, to predict from.
- `generator`: `GeneratorData`, batches from Python generators.
- `fit_data`: `FitData`, whatever `keras.Model.fit` takes.
- `data_digest`: what tells data apart.

A configuration names the five classes as `runner.inputs.CLASS`. They fulfil the contract `Data` of
`runner.graph.contracts`; this room knows nothing else of a run.
"""

from runner.inputs.fit_data import FitData
from runner.inputs.generator import GeneratorData
from runner.inputs.split_data import ImageFolder, Npz
from runner.inputs.tfrecord import TFRecord

__all__ = ["FitData", "GeneratorData", "ImageFolder", "Npz", "TFRecord"]
