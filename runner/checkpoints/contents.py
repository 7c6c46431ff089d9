"""What a directory holds: checkpoints, the newest of them, their steps, runs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from runner.checkpoints import files
from runner.errors import CheckpointError, Problem

STATE_FILE = "checkpoint"

# The parts of a run directory that lead to its checkpoints, relative to it.
RUN_RECORD = "run.json"
CHECKPOINTS, BEST, BEST_RECORD = "checkpoints", "best", "best.json"

_SHARDED_INDEX = ".safetensors.index.json"
_SAFETENSORS_SHARD = re.compile(r".*-\d{5}-of-\d{5}\.safetensors")
_SUFFIXES = (".h5", ".hdf5", ".keras", ".safetensors", ".npz", ".npy")
_STEP = re.compile(r".*-(\d+)")


class NoCheckpointError(CheckpointError):
    """There is nothing at a path: what an optional checkpoint may be."""


def is_checkpoint(path: str) -> bool:
    """Whether a bundle's prefix, a file or a sharded V1 checkpoint's pattern is there."""
    if files.exists(f"{path}.index") or files.is_file(path):
        return True
    directory, name = os.path.split(path)
    return "?" in name and bool(files.matching(directory, name))


def is_run(directory: str) -> bool:
    """Whether a directory is the folder of a run."""
    return files.is_file(os.path.join(directory, RUN_RECORD))


def runs_in(directory: str) -> list[str]:
    """Returns the folders of the runs in a directory."""
    folders = (os.path.join(directory, name) for name in files.names_in(directory))
    return [each for each in folders if is_run(each)]


def folders_with_checkpoints(directory: str) -> tuple[str, ...]:
    """Returns the folders in a directory that hold checkpoints."""
    folders = (os.path.join(directory, name) for name in sorted(files.names_in(directory)))
    return tuple(each for each in folders if files.is_directory(each) and _holds_any(each))


def _holds_any(directory: str) -> bool:
    try:
        return files.is_file(os.path.join(directory, STATE_FILE)) or bool(in_directory(directory))
    except OSError:
        return False  # What cannot be listed is no choice to offer.


def newest(directory: str) -> str | None:
    """Returns the newest checkpoint by the `checkpoint` file; None when there is no such file.

    Raises:
      CheckpointError: when the file is damaged or names a checkpoint that is not there.
    """
    kept = _state(directory)
    if kept is None:
        return None
    if not is_checkpoint(kept[-1]):
        raise CheckpointError(
            Problem(
                f"the `checkpoint` file in {directory} names {kept[-1]}",
                "no such checkpoint is there",
                "name one of the checkpoints that are, or restore the files from a copy",
                in_directory(directory),
            )
        )
    return kept[-1]


def in_order(directory: str) -> list[str]:
    """Returns the checkpoints that are there, oldest first: as listed, else by their steps."""
    kept = _state(directory)
    if kept is not None:
        return [each for each in kept if is_checkpoint(each)]
    numbered = steps(directory)
    return [numbered[step] for step in sorted(numbered)]


def steps(directory: str) -> dict[int, str]:
    """Returns step -> checkpoint, for those whose names end in `-<step>`."""
    found = [*in_directory(directory), *(_state(directory) or ())]
    matches = ((each, _STEP.fullmatch(each)) for each in found if is_checkpoint(each))
    return {int(match[1]): each for each, match in matches if match}


def in_directory(directory: str) -> tuple[str, ...]:
    """Returns the bundles and the files under the usual suffixes of the other formats."""
    names = files.names_in(directory) if files.is_directory(directory or ".") else []
    found = {name.removesuffix(".index") for name in names if name.endswith(".index")}
    found |= {name for name in names if name.endswith(_SHARDED_INDEX)}
    found |= {
        name
        for name in names
        if name.endswith(_SUFFIXES) and not _SAFETENSORS_SHARD.fullmatch(name)
    }
    return tuple(os.path.join(directory, name) for name in sorted(found))


def _state(directory: str) -> tuple[str, ...] | None:
    """Returns the checkpoints that the `checkpoint` file lists, the newest last."""
    file = os.path.join(directory, STATE_FILE)
    if not files.is_file(file):
        return None
    with files.reading(file):
        pass  # TensorFlow takes a file that it must not read for a damaged one.
    state = read_state(directory)
    if state is None:
        raise CheckpointError(
            Problem(
                f"the `checkpoint` file in {directory} is damaged",
                "it names no checkpoint",
                "delete it, or name one of the checkpoints",
                in_directory(directory),
            )
        )
    return (*(each for each in state.kept if each != state.newest), state.newest)


@dataclass(frozen=True)
class CheckpointState:
    """What a directory's `checkpoint` file says.

    Attributes:
      newest: the prefix of the newest checkpoint.
      kept: the prefixes of all checkpoints that were kept, oldest first.
    """

    newest: str
    kept: tuple[str, ...]


def read_state(directory: str) -> CheckpointState | None:
    """Returns what the `checkpoint` file says; None when there is none or it is damaged.

    TensorFlow makes the relative paths in it relative to the working directory.
    """
    # Importing TensorFlow takes seconds, which directories without such a file do not need.
    import tensorflow as tf

    state = tf.train.get_checkpoint_state(directory)
    if state is None:
        return None
    return CheckpointState(
        str(state.model_checkpoint_path), tuple(map(str, state.all_model_checkpoint_paths))
    )
