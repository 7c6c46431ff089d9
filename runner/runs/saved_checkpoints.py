"""Saves checkpoints so that a crash leaves a whole one, and finds it when the run resumes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf
from google.protobuf import text_format

from runner.checkpoints.contents import BEST_RECORD, STATE_FILE, read_state
from runner.checkpoints.formats.bundle import BundleReader
from runner.checkpoints.reader import TensorSpec
from runner.errors import CheckpointError
from runner.runs.run_directory import RunDirectory
from runner.system.atomic_files import (
    next_numbered_folder,
    remove_leftovers,
    sync_to_disk,
    write_text,
)
from runner.tracking.tracking_directory import TrackingDirectory

_Saver: TypeAlias = tf.compat.v1.train.Saver
_Session: TypeAlias = tf.compat.v1.Session

PREFIX = "model.ckpt"
_FILE = re.compile(rf"{re.escape(PREFIX)}-(\d+)\.(?:index|data-\d{{5}}-of-\d{{5}}|meta)")
# TensorFlow and `write_text` write to such names first and rename the files once they are complete.
_UNFINISHED = (f"{PREFIX}-*.tempstate*", f"{STATE_FILE}.*.tmp", f"{BEST_RECORD}.*.tmp")
_BATCH_BYTES = 2**26


def is_save_error(error: Exception, directory: Path) -> bool:
    """Whether the disk is why a save into a directory failed.

    False for a preempted session, and for state that can never be saved.
    """
    if isinstance(error, tf.errors.AbortedError | tf.errors.UnavailableError):
        return False
    if isinstance(error, OSError):
        return True
    # TensorFlow names the file; it raises ValueError where the directory is gone.
    return isinstance(error, tf.errors.OpError | ValueError) and str(directory) in str(error)


def save(session: _Session, saver: _Saver, directory: Path, step: int) -> None:
    """Saves `directory/model.ckpt-<step>` without the graph, and removes the oldest.

    The new files are on the disk before the `checkpoint` file names them, and only then are the
    oldest removed, down to the saver's `max_to_keep`. So the `checkpoint` file names a whole
    checkpoint at any instant, once there is one.

    Raises:
      Exception: see `is_save_error`; no unfinished file is left then.
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
        sync_to_disk(*directory.glob(f"{new}.*"), directory)
        names = [*(name for name in state(directory) if name != new), new]
        limit = saver.as_saver_def().max_to_keep or len(names)
        write_state(directory, names[-limit:])
    except Exception:
        for file in directory.glob(f"{PREFIX}-{step}.*.tempstate*"):
            file.unlink()
        raise
    for name in names[:-limit]:
        # The index first: `recover` removes files that were left without one.
        for file in sorted(directory.glob(f"{name}.*"), reverse=True):
            file.unlink(missing_ok=True)


def state(directory: Path) -> list[str]:
    """Returns the names that the `checkpoint` file lists, oldest first; empty if it is damaged."""
    if not (directory / STATE_FILE).is_file():
        return []
    return [Path(path).name for path in read_state(str(directory)) or ()]


def write_state(directory: Path, names: Sequence[str]) -> None:
    """Replaces the `checkpoint` file in an atomic write; the last of the names is the newest."""
    proto = tf.compat.v1.train.generate_checkpoint_state_proto(
        str(directory.absolute()), names[-1], list(names)
    )
    write_text(directory / STATE_FILE, text_format.MessageToString(proto))
    sync_to_disk(directory)


def by_step(directory: Path) -> dict[int, list[Path]]:
    """Returns the files of each checkpoint in a directory, newest step first, whole or not."""
    files_by_step: dict[int, list[Path]] = {}
    for file in sorted(directory.glob(f"{PREFIX}-*")):
        match = _FILE.fullmatch(file.name)
        if match:
            files_by_step.setdefault(int(match[1]), []).append(file)
    return dict(sorted(files_by_step.items(), reverse=True))


def recover(run: RunDirectory, say: Callable[[str], None]) -> None:
    """Makes sure that the run resumes from its newest whole checkpoint, if it has any.

    Files that a killed process was writing are removed. Newer checkpoints that are damaged are
    moved to `damaged/` in the run directory, never deleted. The `checkpoint` file is rewritten
    where it is damaged or names files that are gone.

    Args:
      run: the run directory, which this process has to own.
      say: takes a line about each checkpoint that is set aside.

    Raises:
      CheckpointError: there are checkpoints and none is whole; nothing is moved then.
    """
    tracking = TrackingDirectory(run.path).path
    for folder in (run.path, tracking, *tracking.glob("*/")):
        remove_leftovers(folder)
    _remove_unfinished(run.checkpoints, keep_complete=True)
    _remove_unfinished(run.best, keep_complete=False)
    _recover_newest(run, say)
    _recover_best(run, say)


def _remove_unfinished(directory: Path, *, keep_complete: bool) -> None:
    """Removes what a process left that died during a save, or while it removed an old checkpoint.

    TensorFlow writes a checkpoint's index last, and `save` removes it first: files without one that
    the `checkpoint` file does not name are of a checkpoint that was never complete or is obsolete.

    Args:
      directory: a directory of checkpoints.
      keep_complete: whether to keep those that have an index though they are not named.
    """
    for pattern in _UNFINISHED:
        for file in directory.glob(pattern):
            file.unlink()
    listed = state(directory)
    if not listed and ((directory / STATE_FILE).exists() or any(directory.glob("*.index"))):
        return  # The list is damaged or lost, and may have named any of them.
    for step, files in by_step(directory).items():
        name = f"{PREFIX}-{step}"
        is_complete = (directory / f"{name}.index").exists()
        if name not in listed and not (keep_complete and is_complete):
            for file in files:
                file.unlink()


def _recover_newest(run: RunDirectory, say: Callable[[str], None]) -> None:
    directory = run.checkpoints
    files_by_step, listed = by_step(directory), state(directory)
    if not files_by_step:
        return
    damaged: dict[int, str] = {}
    for newest in files_by_step:
        reason = damage(directory / f"{PREFIX}-{newest}")
        if reason is None:
            break
        damaged[newest] = reason
    else:
        raise CheckpointError.of(
            f"{run.path} cannot be resumed: none of its checkpoints is whole",
            "; ".join(f"step {step}: {reason}" for step, reason in damaged.items()),
            "restore their files from a copy, or start a new run with resume=never",
        )
    names = [
        f"{PREFIX}-{step}"
        for step in sorted(files_by_step)
        if step <= newest and (directory / f"{PREFIX}-{step}.index").exists()
    ]
    if listed != names:
        write_state(directory, names)
    resumes = f"the run resumes from step {newest}"
    for step, reason in damaged.items():
        folder = _set_aside(run, files_by_step[step])
        say(f"checkpoint of step {step} is damaged and set aside in {folder} ({reason}); {resumes}")
    for name in listed:
        step = int(name.rpartition("-")[2])
        if step > newest and step not in damaged:
            say(f"checkpoint {name} is gone from {directory}; {resumes}")


def _recover_best(run: RunDirectory, say: Callable[[str], None]) -> None:
    directory = run.best
    names = state(directory)
    if not names or not run.best_record.is_file():
        return
    reason = damage(directory / names[-1])
    if reason is None:
        return
    step = int(names[-1].rpartition("-")[2])
    files = [*by_step(directory).get(step, []), run.best_record, directory / STATE_FILE]
    folder = _set_aside(run, files)
    say(
        f"the best checkpoint, of step {step}, is damaged and set aside in {folder} ({reason}); "
        "the best of the coming evaluations takes its place"
    )


def damage(prefix: Path) -> str | None:
    """Reads every byte of a checkpoint's tensors and describes the first damage; None if whole.

    Args:
      prefix: the prefix of a bundle, of which at least one file exists.
    """
    if not Path(f"{prefix}.index").exists():
        return "its index is missing"
    reader = BundleReader(str(prefix))
    try:
        reader.spec()
        _read_all(reader)
    except CheckpointError as error:
        problem = error.problems[0]
        return (problem.cause or problem.state).partition("\n")[0]
    except tf.errors.OpError as error:
        lines = str(error.message).splitlines()
        return next((line for line in lines if reader.prefix in line), lines[0])
    return None


def _read_all(reader: BundleReader) -> None:
    """Has TensorFlow check the checksum of every tensor, with about 64 MB in memory at a time."""
    # NumPy has no type for the state of iterators, so that `reader.read` cannot read it.
    sums = itertools.accumulate(tensor.bytes for tensor in reader.stored.values())
    batches: dict[int, list[TensorSpec]] = {}
    for tensor, total in zip(reader.stored.values(), sums, strict=True):
        batches.setdefault(total // _BATCH_BYTES, []).append(tensor)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for batch in batches.values():
            tensors = tf.raw_ops.RestoreV2(
                prefix=reader.prefix,
                tensor_names=[tensor.name for tensor in batch],
                shape_and_slices=[""] * len(batch),
                dtypes=[tf.as_dtype(tensor.dtype) for tensor in batch],
            )
            session.run(tensors[0].op)


def _set_aside(run: RunDirectory, files: list[Path]) -> Path:
    folder = next_numbered_folder(run.path / "damaged")
    folder.mkdir(parents=True)
    for file in files:
        if file.exists():
            file.rename(folder / file.name)
    return folder
