"""Checkpoints of any format: their places, their tensors, and the tensors' values.

The interface:
  reader: `CheckpointReader`, its base for formats of one file, and the specs from metadata.
  recognition: the table of formats; recognises a format by content.
  open: opens the checkpoint, or the mean of several. A door: `open_reader`.
  locate: finds the paths of a choice (latest, best, a step, an average). A door:
    `checkpoint_paths`.
  contents: the checkpoints, steps and runs in a directory.
  hugging_face: finds models of the Hugging Face Hub (`hf://`) in its cache, or downloads them.
  files: local and remote files, their digests, the cache of copies.
  remote: files that fsspec opens, such as `s3://` and `https://`.
  archives: zip archives, within bounds.
  quantization: recognises codes of quantized weights by the tensors beside them.
  formats: the readers.

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
