"""What a directory holds: checkpoints, the newest of them, their steps, and runs."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from dataclasses import replace

import yaml

from runner.checkpoints import files
from runner.checkpoints.formats import is_orbax, is_saved_model, is_torch, is_v1
from runner.errors import CheckpointError, Problem

STATE_FILE = "checkpoint"

# The parts of a run directory that lead to its checkpoints, relative to it.
RUN_RECORD = "run.json"
CHECKPOINTS, BEST, BEST_RECORD = "checkpoints", "best", "best.json"

# A folder that MLflow saved as a model, and what its flavors call the part that holds weights.
_MLMODEL = "MLmodel"
_MLMODEL_PARTS = ("saved_model_dir", "data", "model_data", "model_binary")

_SHARDED_INDICES = (".safetensors.index.json", ".bin.index.json")
_SHARD = re.compile(r".*-\d{5}-of-\d{5}\.(safetensors|bin)")
_SUFFIXES = (
    *(".h5", ".hdf5", ".keras", ".safetensors", ".npz", ".npy"),
    *(".pt", ".pth", "pytorch_model.bin", ".msgpack"),
)
# V1 checkpoints have no suffix; without a `checkpoint` file they are found by their usual names.
_V1_NAME = re.compile(r".*\.ckpt(-\d+)?")
_V1_SHARD = re.compile(r"(?!.*\.data-)(.*)-00000-of-\d{5}")
# The pattern that stands for the shards of a V1 checkpoint follows its step.
_STEP = re.compile(r".*?-(\d+)(-\?{5}-of-\d{5})?")


class NoCheckpointError(CheckpointError):
    """There is nothing at a path; an optional checkpoint may be missing like this."""

    def or_else(self, remedy: str) -> NoCheckpointError:
        """Returns the error with another remedy besides its own."""
        both = (replace(each, remedy=f"{each.remedy}, or {remedy}") for each in self.problems)
        return NoCheckpointError(*both)


class LostCheckpointError(CheckpointError, ValueError):
    """The `checkpoint` file leads to no checkpoint; a ValueError, as TensorFlow has it."""


def v1_shards(directory: str, prefix: str) -> str | None:
    """Returns the pattern for the shards of a V1 checkpoint in a directory; None without any."""
    shards = files.matching(directory, f"{glob.escape(prefix)}-?????-of-?????")
    count = shards[0][-5:] if shards and is_v1(shards[0]) else ""
    return f"{prefix}-?????-of-{count}" if count else None


def is_checkpoint(path: str) -> bool:
    """Whether a bundle's prefix, a file or a sharded V1 checkpoint's pattern is there."""
    return files.exists(f"{path}.index") or files.is_file(path) or is_v1(path)


def is_run(directory: str) -> bool:
    """Whether a directory is a run directory."""
    return files.is_file(os.path.join(directory, RUN_RECORD))


def runs_in(directory: str) -> list[str]:
    """Returns the run directories in a directory."""
    found = (os.path.join(directory, name) for name in files.names_in(directory))
    return [path for path in found if is_run(path)]


def folders_with_checkpoints(directory: str) -> tuple[str, ...]:
    """Returns the directories in a directory that hold checkpoints."""
    found = (os.path.join(directory, name) for name in files.names_in(directory))
    return tuple(path for path in found if files.is_directory(path) and _holds_any(path))


def _holds_any(directory: str) -> bool:
    try:
        return files.is_file(os.path.join(directory, STATE_FILE)) or bool(in_directory(directory))
    except OSError:
        return False  # A directory that cannot be listed is not offered as a choice.


def in_mlflow_model(directory: str) -> str | None:
    """Returns the path with the weights of a model that MLflow saved; None where there is none.

    Raises:
      CheckpointError: when `MLmodel` is damaged, or names nothing that is there.
    """
    file = os.path.join(directory, _MLMODEL)
    if not files.is_file(file):
        return None
    try:
        flavors = yaml.safe_load(files.read_text(file))["flavors"]
        named = [part for name in flavors for part in _parts(flavors[name])]
    except (ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        cause = f"it does not describe a model: {error!r}"
        raise CheckpointError(Problem(f"{file} is damaged", cause, "copy it again")) from error
    found = [path for part in named if files.exists(path := os.path.join(directory, part))]
    if not found:
        raise CheckpointError(
            Problem(
                f"the MLflow model in {directory} holds no checkpoint",
                f"it is saved for {', '.join(flavors)}",
                "name a model of TensorFlow, Keras or Transformers",
            )
        )
    inner = os.path.join(found[0], "model")  # Where Keras keeps a SavedModel.
    return inner if is_saved_model(inner) else found[0]


def _parts(flavor: Mapping[str, object]) -> list[str]:
    # `python_function` names under these keys what another flavor names too, or code.
    loads_another = "loader_module" in flavor
    return [] if loads_another else [str(flavor[key]) for key in _MLMODEL_PARTS if key in flavor]


def newest(directory: str) -> str | None:
    """Returns the newest checkpoint, or None.

    TensorFlow's `checkpoint` file names it; in a directory of Orbax it has the largest step.

    Raises:
      LostCheckpointError: when the file is damaged or names a checkpoint that is not there.
    """
    kept = _state(directory)
    if kept is None:
        at = _orbax_steps(directory)
        return at[max(at)] if at else None
    if not is_checkpoint(kept[-1]):
        raise LostCheckpointError(
            Problem(
                f"the `checkpoint` file in {directory} names {kept[-1]}",
                "no such checkpoint is there",
                "name one of those that are there, or restore the files from a copy",
                in_directory(directory),
            )
        )
    return kept[-1]


def in_order(directory: str) -> list[str]:
    """Returns the existing checkpoints, oldest first: as listed, else by their steps."""
    kept = _state(directory)
    if kept is not None:
        return [path for path in kept if is_checkpoint(path)]
    return [path for _, path in sorted(steps(directory).items())]


def steps(directory: str) -> dict[int, str]:
    """Returns step -> checkpoint, for those whose names end in `-<step>`."""
    found = [*in_directory(directory), *(_state(directory) or ())]
    matches = ((path, _STEP.fullmatch(path)) for path in found if is_checkpoint(path))
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
    found = {name.removesuffix(".index") for name in names if name.endswith(".index")}
    for name in names:
        is_shard = _SHARD.fullmatch(name) is not None
        usual = name.endswith((*_SUFFIXES, *_SHARDED_INDICES)) and not is_shard
        path = os.path.join(directory, name)
        if usual or (_V1_NAME.fullmatch(name) and (is_v1(path) or is_torch(path))):
            found.add(name)
        v1 = v1_shards(directory, match[1]) if (match := _V1_SHARD.fullmatch(name)) else None
        if v1 is not None:
            found.add(v1)
    return tuple(os.path.join(directory, name) for name in sorted(found))


def _state(directory: str) -> tuple[str, ...] | None:
    """Returns what `read_state` does; a damaged file is a LostCheckpointError."""
    file = os.path.join(directory, STATE_FILE)
    if not files.is_file(file):
        return None
    with files.reading(file):
        pass  # TensorFlow would report a file that it may not read as damaged.
    state = read_state(directory)
    if state is None:
        raise LostCheckpointError(
            Problem(
                f"the `checkpoint` file in {directory} is damaged",
                "it names no checkpoint",
                "delete it, or name one of the checkpoints",
                in_directory(directory),
            )
        )
    return state


def read_state(directory: str) -> tuple[str, ...] | None:
    """Returns the checkpoints that the `checkpoint` file lists, the newest last.

    None stands for a file that is missing or damaged. Relative paths in it are relative to the
    directory.
    """
    # Importing TensorFlow takes seconds, which directories without such a file do not need.
    import tensorflow as tf

    try:
        state = tf.train.get_checkpoint_state(directory)
    except ValueError:  # Empty, as a full disk leaves it, or not text.
        return None
    if state is None:
        return None
    newest, kept = state.model_checkpoint_path, state.all_model_checkpoint_paths
    return (*(str(path) for path in kept if path != newest), str(newest))
