"""Saves checkpoints so that the death of the process or the machine leaves a whole one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf
from google.protobuf import text_format

from runner.checkpoints.contents import STATE_FILE, read_state
from runner.system.atomic_files import write_text

_Saver: TypeAlias = tf.compat.v1.train.Saver
_Session: TypeAlias = tf.compat.v1.Session

PREFIX = "model.ckpt"
_FILE = re.compile(rf"{re.escape(PREFIX)}-(\d+)\.(?:index|data-\d{{5}}-of-\d{{5}}|meta)")
# TensorFlow writes under such names first, and renames when all is written.
_UNFINISHED = f"{PREFIX}-*.tempstate*"


def is_save_error(error: Exception, directory: Path) -> bool:
    """Whether a save into a directory failed because of the disk.

    A preempted session fails otherwise, and so does state that can never be saved.
    """
    if isinstance(error, tf.errors.AbortedError | tf.errors.UnavailableError):
        return False
    if isinstance(error, OSError):
        return True
    # TensorFlow names the file; ValueError is for a directory that has gone.
    return isinstance(error, tf.errors.OpError | ValueError) and str(directory) in str(error)


def save(session: _Session, saver: _Saver, directory: Path, step: int) -> None:
    """Saves `directory/model.ckpt-<step>` without the graph, and removes the oldest.

    Before the `checkpoint` file names the new one its files are on the disk, and only then are
    old ones removed, as many as exceed the saver's `max_to_keep`. At any instant the `checkpoint`
    file names a whole checkpoint, if there ever was one.

    Raises:
      Exception: of the kinds that `is_save_error` tells; there is no unfinished file then.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        saver.save(
            session,
            str(directory / PREFIX),
            global_step=step,
            write_meta_graph=False,
            write_state=False,
        )
        new = f"{PREFIX}-{step}"
        _write_out([*directory.glob(f"{new}.*"), directory])
        listed = [each for each in state(directory) if each != new]
        kept = [*listed, new]
        limit = saver.as_saver_def().max_to_keep
        kept, removed = (kept[-limit:], kept[:-limit]) if limit else (kept, [])
        write_state(directory, kept)
    except Exception:
        for file in directory.glob(f"{PREFIX}-{step}.*.tempstate*"):
            file.unlink()
        raise
    for name in removed:
        for file in directory.glob(f"{name}.*"):
            file.unlink(missing_ok=True)


def state(directory: Path) -> list[str]:
    """Returns the names that the `checkpoint` file lists, oldest first; none if it is damaged."""
    if not (directory / STATE_FILE).is_file():
        return []
    try:
        found = read_state(str(directory))
    except (tf.errors.OpError, ValueError):  # What is no text, or names nothing.
        return []
    if found is None:
        return []
    older = [each for each in found.kept if each != found.newest]
    return [Path(each).name for each in (*older, found.newest)]


def write_state(directory: Path, names: Sequence[str]) -> None:
    """Writes the `checkpoint` file in one step; the last of the names is the newest."""
    proto = tf.compat.v1.train.generate_checkpoint_state_proto(
        str(directory.absolute()), names[-1], list(names)
    )
    write_text(directory / STATE_FILE, text_format.MessageToString(proto))
    _write_out([directory])


def by_step(directory: Path) -> dict[int, list[Path]]:
    """Returns the files of each checkpoint in a directory, newest step first, whole or not."""
    found: dict[int, list[Path]] = {}
    for file in sorted(directory.glob(f"{PREFIX}-*")):
        match = _FILE.fullmatch(file.name)
        if match:
            found.setdefault(int(match[1]), []).append(file)
    return dict(sorted(found.items(), reverse=True))


def remove_unfinished(directory: Path) -> None:
    """Removes what a process left that died while it saved."""
    for file in directory.glob(_UNFINISHED):
        file.unlink()


def _write_out(paths: Iterable[Path]) -> None:
    """Waits until files and directories are on the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
