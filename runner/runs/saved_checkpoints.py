"""Saved checkpoints of a run: written so that a crash leaves a whole one, and found again.

At its start a run resumes from its newest whole checkpoint; damaged ones are set aside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf
from google.protobuf import text_format

from runner.checkpoints.bundle import READ_ERRORS, BundleReader
from runner.checkpoints.contents import STATE_FILE, read_state
from runner.errors import CheckpointError, Problem
from runner.runs.run_directory import RunDirectory
from runner.system.atomic_files import next_numbered_folder, sync_to_disk, write_text

_Saver: TypeAlias = tf.compat.v1.train.Saver
_Session: TypeAlias = tf.compat.v1.Session

PREFIX = "model.ckpt"
_FILE = re.compile(rf"{re.escape(PREFIX)}-(\d+)\.(?:index|data-\d{{5}}-of-\d{{5}}|meta)")
# TensorFlow writes under such names first, and renames when all is written.
_UNFINISHED = f"{PREFIX}-*.tempstate*"
_GROUP_BYTES = 2**26


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
    found: dict[int, list[Path]] = {}
    for file in sorted(directory.glob(f"{PREFIX}-*")):
        match = _FILE.fullmatch(file.name)
        if match:
            found.setdefault(int(match[1]), []).append(file)
    return dict(sorted(found.items(), reverse=True))


def recover(run: RunDirectory, say: Callable[[str], None]) -> None:
    """Makes sure that the run resumes from its newest whole checkpoint, if it has any.

    A newer one that is damaged is moved to `damaged/` in the run directory, never deleted. The
    `checkpoint` file is rewritten where it is damaged, or names files that are gone. The process
    has to own the run.

    `say` is called with a line for each checkpoint that is set aside.

    Raises:
      CheckpointError: there are checkpoints and none is whole; nothing is moved then.
    """
    # What a process left that died during a save.
    for file in (*run.checkpoints.glob(_UNFINISHED), *run.best.glob(_UNFINISHED)):
        file.unlink()
    _recover_newest(run, say)
    _recover_best(run, say)


def _recover_newest(run: RunDirectory, say: Callable[[str], None]) -> None:
    directory = run.checkpoints
    found, listed = by_step(directory), state(directory)
    damaged: dict[int, str] = {}
    for step in found:
        reason = damage(directory / f"{PREFIX}-{step}")
        if reason is None:
            break
        damaged[step] = reason
    else:
        if damaged:
            raise CheckpointError(
                Problem(
                    f"{run.path} cannot be resumed: none of its checkpoints is whole",
                    "; ".join(f"step {step}: {reason}" for step, reason in damaged.items()),
                    "restore their files from a copy, or start anew with resume=never",
                )
            )
        return
    names = [f"{PREFIX}-{each}" for each in sorted(found) if each <= step]
    names = [each for each in names if (directory / f"{each}.index").exists()]
    if listed != names:
        write_state(directory, names)
    place = f"the run resumes from step {step}"
    for each, reason in damaged.items():
        moved = _set_aside(run, found[each])
        say(f"checkpoint of step {each} is damaged and set aside in {moved} ({reason}); {place}")
    for name in listed:
        number = int(name.rpartition("-")[2])
        if number > step and number not in damaged:
            say(f"checkpoint {name} is gone from {directory}; {place}")


def _recover_best(run: RunDirectory, say: Callable[[str], None]) -> None:
    directory = run.best
    names = state(directory)
    if not names or not run.best_record.is_file():
        return
    reason = damage(directory / names[-1])
    if reason is None:
        return
    step = int(names[-1].rpartition("-")[2])
    files = [*by_step(directory).get(step, []), run.best_record, directory / "checkpoint"]
    moved = _set_aside(run, files)
    say(
        f"the best checkpoint, of step {step}, is damaged and set aside in {moved} ({reason}); "
        "the best of the coming evaluations takes its place"
    )


def damage(prefix: Path) -> str | None:
    """Returns what is wrong with a checkpoint, or None; every byte of its tensors is read.

    Args:
      prefix: of a bundle, of which at least one file exists.
    """
    try:
        if not Path(f"{prefix}.index").exists():
            return "its index is missing"
        reader = BundleReader(str(prefix))
        reader.spec()
        _read_all(reader)
    except CheckpointError as error:
        problem = error.problems[0]
        return _one_line(problem.cause or problem.state)
    except READ_ERRORS as error:
        return _one_line(str(error))
    return None


def _read_all(reader: BundleReader) -> None:
    """Has TensorFlow check the checksum of every tensor, holding 64 MB of them at a time."""
    groups: list[list[str]] = [[]]
    held = 0
    for name, spec in reader.stored.items():
        if groups[-1] and held + spec.bytes > _GROUP_BYTES:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += spec.bytes
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for names in filter(None, groups):
            tensors = tf.raw_ops.RestoreV2(
                prefix=reader.prefix,
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                dtypes=[tf.as_dtype(reader.stored[name].dtype) for name in names],
            )
            session.run(tensors[0].op)


def _set_aside(run: RunDirectory, files: list[Path]) -> Path:
    folder = next_numbered_folder(run.path / "damaged")
    folder.mkdir(parents=True)
    for file in files:
        if file.exists():
            file.rename(folder / file.name)
    return folder


def _one_line(text: str) -> str:
    """Returns the message of an error, without its place in the graph."""
    _, node, message = text.partition("\nNode: ")
    lines = (message.splitlines()[1:] if node else text.strip().splitlines()) or ["unreadable"]
    return lines[0]
