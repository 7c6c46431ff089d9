"""Checkpoints of any format: their places, their tensors, and the tensors' values.

The interface:
  reader: `CheckpointReader`, its base for formats of one file, and the specs from metadata.
  formats: recognises a format by content.
  open: opens the checkpoint, or the mean of several. A door: `open_reader`.
  hugging_face: finds models of the Hugging Face Hub (`hf://`) in its cache, or downloads them.
  locate: finds the paths of a choice (latest, best, a step, an average). A door:
    `checkpoint_paths`.
  contents: the checkpoints, steps and runs in a directory.
  archives: zip archives, within bounds.
  files: local and remote files, their digests, the cache of copies.
  remote: files that fsspec opens, such as `s3://` and `https://`.

The formats:
  bundle: TensorFlow's V1 and V2 checkpoints, saved by name or by object, and SavedModels.
  links: opens bundles whose paths TensorFlow takes for patterns.
  tables: checks the tables in V1 checkpoints and in the indices of bundles for damage.
  keras_files: `.keras`, `.h5` and other HDF5 files; `keras_names`: the names of the variables;
    `hdf5`: the datasets in such files.
  array_files: `.npy`, `.npz`, `.safetensors`.
  torch_files: files of `torch.save`; `torch_objects`: the tensors in them; `pickle_nodes`: pickles
    as data, without executing anything.
  msgpack_files: files of Flax; `orbax`: directories of Orbax.
  word_vectors: files of GloVe and word2vec.
  shards: several files and their index.
  quantization: recognises codes of quantized weights by the tensors beside them.

On top of the interface:
  inspection: checkpoints as mappings, their differences, statistics of values. Doors for programs:
    `runner.open_checkpoint` and `diff`.

This room only reads: nothing builds a training graph, assigns a variable or writes into a
checkpoint's directory. Which tensor goes to which variable is decided in `planning`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.checkpoints.inspection import diff

__all__ = ["diff"]


def __getattr__(name: str) -> Any:
    # Imported on access: every reader of a file would wait for Rich's tables.
    if name != "diff":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from runner.checkpoints import inspection

    return inspection.diff
