"""Data sets for `_target_`, each with three splits of batches, made by `tf.data`.

  split_data: `Npz` and `ImageFolder`, one collection of examples divided into splits.
  tfrecord: `TFRecord`, files of `tf.train.Example`s for each split.
  generator: `GeneratorData`, batches from Python generators.

The doors are the four classes, which any config may name as `runner.inputs.<class>`. The contract
that they follow is `Data` in `graph/experiment.py`; what a run does with batches is elsewhere.
"""

from runner.inputs.generator import GeneratorData
from runner.inputs.split_data import ImageFolder, Npz
from runner.inputs.tfrecord import TFRecord

__all__ = ["GeneratorData", "ImageFolder", "Npz", "TFRecord"]
