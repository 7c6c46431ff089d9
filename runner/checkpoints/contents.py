"""Lists the contents of a directory: checkpoints, the newest one, their steps, and runs."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from dataclasses import replace

import yaml

from runner.checkpoints import files
from runner.checkpoints.recognition import Format, is_orbax, is_saved_model, is_torch, is_v1
from runner.errors import CheckpointError

STATE_FILE = "checkpoint"

# The files of a run directory that lead to its checkpoints.
RUN_RECORD = "run.json"
CHECKPOINTS, BEST, BEST_RECORD = "checkpoints", "best", "best.json"

# The file that describes a model saved by MLflow, and the keys of its flavors that name weights.
_MLMODEL = "MLmodel"
_MLMODEL_PARTS = ("saved_model_dir", "data", "model_data", "model_binary")

# Of `checkpoint` and `MLmodel`: they take kilobytes; YAML of this size takes 10 seconds.
_MAX_DESCRIPTION = 1 << 20

_SHARD = re.compile(r".*(-\d{5}-of-\d{5}\.(safetensors|bin)|_\d{5}\.weights\.h5)", re.DOTALL)
_SUFFIXES = tuple(suffix for form in Format for suffix in form.suffixes)
# V1 checkpoints have no suffix; without a `checkpoint` file, their usual names identify them.
_V1_NAME = re.compile(r".*\.ckpt(-\d+)?", re.DOTALL)
_V1_SHARD = re.compile(r"(?!.*\.data-)(.*)-00000-of-\d{5}", re.DOTALL)
# A step, and after it the pattern of the shards if this is a V1 checkpoint.
_STEP = re.compile(r".*?-(\d+)(-\?{5}-of-\d{5})?", re.DOTALL)


class NoCheckpointError(CheckpointError):
    """There is no checkpoint at a path; an optional checkpoint may be absent in this way."""

    def or_else(self, remedy: str) -> NoCheckpointError:
        """Returns the error with a further remedy."""
        return NoCheckpointError(
            *(
                replace(problem, remedy=f"{problem.remedy}, or {remedy}")
                for problem in self.problems
            )
        )


class LostCheckpointError(CheckpointError, ValueError):
    """The `checkpoint` file leads to no checkpoint; a ValueError, as in TensorFlow."""


def v1_shards(directory: str, prefix: str) -> str | None:
    """Returns the pattern of the shards of a V1 checkpoint in a directory, or None."""
    shards = files.matching(directory, f"{glob.escape(prefix)}-?????-of-?????")
    is_sharded = bool(shards) and is_v1(shards[0])
    return f"{prefix}-?????-of-{shards[0][-5:]}" if is_sharded else None


def is_checkpoint(path: str) -> bool:
    """Returns whether a bundle's prefix, a file or a sharded V1 checkpoint's pattern exists."""
    return files.exists(f"{path}.index") or files.is_file(path) or is_v1(path)


def is_run(directory: str) -> bool:
    """Returns whether a directory is a run directory."""
    return files.is_file(os.path.join(directory, RUN_RECORD))


def runs_in(directory: str) -> list[str]:
    """Returns the run directories in a directory."""
    return [path for path in _entries(directory) if is_run(path)]


def folders_with_checkpoints(directory: str) -> tuple[str, ...]:
    """Returns the run directories and the directories of checkpoints in a directory."""
    folders = [path for path in _entries(directory) if files.is_directory(path)]
    return tuple(path for path in folders if is_run(path) or _holds_checkpoints(path))


def _entries(directory: str) -> list[str]:
    return [os.path.join(directory, name) for name in files.names_in(directory)]


def _holds_checkpoints(directory: str) -> bool:
    return files.is_file(os.path.join(directory, STATE_FILE)) or bool(in_directory(directory))


def in_mlflow_model(directory: str) -> str | None:
    """Returns the path with the weights of a model that MLflow saved; None without `MLmodel`.

    Raises:
      CheckpointError: when `MLmodel` is damaged, or the parts that it names are missing.
    """
    file = os.path.join(directory, _MLMODEL)
    if not files.is_file(file):
        return None
    try:
        flavors = yaml.safe_load(files.read_text(file, _MAX_DESCRIPTION))["flavors"]
        parts = [part for flavor in flavors.values() for part in _parts(flavor)]
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        yaml.YAMLError,
    ) as error:
        cause = f"it does not describe a model: {error!r}"
        raise CheckpointError.of(f"{file} is damaged", cause, "copy it again") from error
    paths = [path for part in parts if files.exists(path := os.path.join(directory, part))]
    if not paths:
        raise CheckpointError.of(
            f"the MLflow model in {directory} holds no checkpoint",
            f"it is saved for {', '.join(flavors)}",
            "name a model of TensorFlow, Keras or Transformers",
        )
    inner = os.path.join(paths[0], "model")  # Keras's flavor stores a SavedModel there.
    return inner if is_saved_model(inner) else paths[0]


def _parts(flavor: Mapping[str, object]) -> list[str]:
    # `python_function` repeats the entries of another flavor, or names code.
    loads_another = "loader_module" in flavor
    return [] if loads_another else [str(flavor[key]) for key in _MLMODEL_PARTS if key in flavor]


def newest(directory: str) -> str | None:
    """Returns the newest checkpoint, or None.

    TensorFlow's `checkpoint` file names it; in a directory of Orbax it has the largest step.

    Raises:
      LostCheckpointError: when the file is damaged or names a missing checkpoint.
    """
    listed = _listed(directory)
    if listed is None:
        at = _orbax_steps(directory)
        return at[max(at)] if at else None
    if not is_checkpoint(listed[-1]):
        raise LostCheckpointError.of(
            f"the `checkpoint` file in {directory} names {listed[-1]}",
            "no such checkpoint is there",
            "name one of the checkpoints that are there, or restore the files from a copy",
            in_directory(directory),
        )
    return listed[-1]


def in_order(directory: str) -> list[str]:
    """Returns the existing checkpoints, oldest first: as listed, else by their steps."""
    listed = _listed(directory)
    if listed is not None:
        return [path for path in listed if is_checkpoint(path)]
    return [path for _, path in sorted(steps(directory).items())]


def steps(directory: str) -> dict[int, str]:
    """Returns step -> checkpoint, for names that end in `-<step>`."""
    paths = [*in_directory(directory), *(_listed(directory) or ())]
    matches = ((path, _STEP.fullmatch(path)) for path in paths if is_checkpoint(path))
    return _orbax_steps(directory) | {int(match[1]): path for path, match in matches if match}


def _orbax_steps(directory: str) -> dict[int, str]:
    """Returns step -> checkpoint for a directory of Orbax's `CheckpointManager`."""
    names = files.names_in(directory) if files.is_directory(directory or ".") else []
    paths = {
        path: int(name)
        for name in names
        if name.isdecimal()
        for path in (os.path.join(directory, name, item) for item in ("default", "state"))
    }
    return {step: path for path, step in paths.items() if is_orbax(path)}


def in_directory(directory: str) -> tuple[str, ...]:
    """Returns the bundles, and the files under the usual names of the other formats."""
    names = files.names_in(directory) if files.is_directory(directory or ".") else []
    checkpoints = {name.removesuffix(".index") for name in names if name.endswith(".index")}
    for name in names:
        is_shard = _SHARD.fullmatch(name) is not None
        usual = name.endswith(_SUFFIXES) and not is_shard
        path = os.path.join(directory, name)
        if usual or (_V1_NAME.fullmatch(name) and (is_v1(path) or is_torch(path))):
            checkpoints.add(name)
        if (match := _V1_SHARD.fullmatch(name)) and (pattern := v1_shards(directory, match[1])):
            checkpoints.add(pattern)
    return tuple(os.path.join(directory, name) for name in sorted(checkpoints))


def _listed(directory: str) -> tuple[str, ...] | None:
    """Returns the checkpoints in the `checkpoint` file; None without it.

    Raises:
      LostCheckpointError: when the file is damaged.
    """
    file = os.path.join(directory, STATE_FILE)
    if not files.is_file(file):
        return None
    # TensorFlow would report a file that it may not read as damaged, and read one of any size.
    files.read_bytes(file, _MAX_DESCRIPTION)
    state = read_state(directory)
    if state is None:
        raise LostCheckpointError.of(
            f"the `checkpoint` file in {directory} is damaged",
            "it names no checkpoint",
            "delete it, or name one of the checkpoints",
            in_directory(directory),
        )
    return state


def read_state(directory: str) -> tuple[str, ...] | None:
    """Returns the checkpoints that the `checkpoint` file lists, newest last.

    Returns None when the file is missing or damaged. Relative paths in it are relative to the
    directory.
    """
    # Directories without such a file need not wait seconds for the import of TensorFlow.
    import tensorflow as tf

    folder = directory
    if files.is_remote(directory):
        folder = os.path.dirname(files.local_copy(os.path.join(directory, STATE_FILE)))
    try:
        state = tf.train.get_checkpoint_state(folder)
    except ValueError:  # Empty, as a full disk leaves it, or not text.
        return None
    if state is None:
        return None
    newest, paths = state.model_checkpoint_path, state.all_model_checkpoint_paths
    ordered = (*(path for path in paths if path != newest), newest)
    return tuple(str(path).replace(folder, directory, 1) for path in ordered)
