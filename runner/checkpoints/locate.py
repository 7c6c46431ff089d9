"""Finds the checkpoint that a directory or a prefix stands for."""

from __future__ import annotations

import os

import tensorflow as tf

from runner.errors import CheckpointError, Problem, nearest


def latest_checkpoint(path: str) -> str | None:
    """Returns the prefix that `path` stands for, or None when nothing is there.

    Args:
      path: a directory (its newest checkpoint is taken, as `tf.train.latest_checkpoint` does), a
        prefix, or a bundle's `.index` file.

    Raises:
      CheckpointError: when a directory's `checkpoint` file names files that are gone.
    """
    prefix = path.removesuffix(".index")
    if tf.io.gfile.exists(f"{prefix}.index"):
        return prefix
    if not tf.io.gfile.isdir(path):
        return None
    state = tf.train.get_checkpoint_state(path)
    found = tf.train.latest_checkpoint(path)
    if state is not None and found is None:
        raise CheckpointError(
            Problem(
                f"the `checkpoint` file in {path} names {state.model_checkpoint_path}",
                "no such checkpoint is there",
                "name one of the checkpoints that are, or restore the files from a copy",
                _prefixes(path),
            )
        )
    return str(found) if found else None


def require_checkpoint(path: str) -> str:
    """Returns the prefix that `path` stands for.

    Raises:
      CheckpointError: when there is no checkpoint at `path`.
    """
    found = latest_checkpoint(path)
    if found is not None:
        return found
    parent, name = os.path.split(path.rstrip("/"))
    if tf.io.gfile.isdir(path):
        state, cause = f"the directory {path} holds no checkpoint", "no `checkpoint` file is in it"
        choices = _prefixes(path)
    else:
        state, cause = f"there is no checkpoint at {path}", "neither a directory nor a prefix"
        choices = tuple(os.path.join(parent, each) for each in nearest(name, _siblings(parent)))
    remedy = "mend the path, or set `optional: true` to initialise these variables instead"
    raise CheckpointError(Problem(state, cause, remedy, choices))


def _siblings(parent: str) -> list[str]:
    """Returns the names in `parent` that may stand for a checkpoint: folders and prefixes."""
    folder = parent or "."
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    prefixes = [each.removesuffix(".index") for each in names if each.endswith(".index")]
    folders = [each.rstrip("/") for each in names if tf.io.gfile.isdir(os.path.join(folder, each))]
    return prefixes + folders


def _prefixes(directory: str) -> tuple[str, ...]:
    files = tf.io.gfile.glob(os.path.join(directory, "*.index"))
    return tuple(sorted(file.removesuffix(".index") for file in files))
