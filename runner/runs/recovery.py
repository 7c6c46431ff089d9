"""Finds a run's newest whole checkpoint at its start, and sets damaged ones aside."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from runner.checkpoints.bundle import BundleReader
from runner.checkpoints.tables import READ_ERRORS
from runner.errors import CheckpointError, Problem
from runner.runs.run_directory import RunDirectory
from runner.runs.saving import PREFIX, by_step, remove_unfinished, state, write_state

_GROUP_BYTES = 2**26


def recover(run: RunDirectory, say: Callable[[str], None]) -> None:
    """Makes sure that the run resumes from its newest whole checkpoint, if it has any.

    A newer one that is damaged is moved to `damaged/` in the run's folder, never deleted. The
    `checkpoint` file is written anew where it is damaged, or names files that are gone. The
    process owns the run.

    Args:
      run: the run.
      say: is given a line for each checkpoint set aside.

    Raises:
      CheckpointError: when there are checkpoints and none is whole; nothing is moved then.
    """
    _recover_newest(run, say)
    _recover_best(run, say)


def _recover_newest(run: RunDirectory, say: Callable[[str], None]) -> None:
    directory = run.checkpoints
    remove_unfinished(directory)
    found, listed = by_step(directory), state(directory)
    damaged: dict[int, str] = {}
    for step in found:
        reason = damage(directory / f"{PREFIX}-{step}")
        if reason is None:
            break
        damaged[step] = reason
    else:
        if damaged:
            raise CheckpointError(_none_whole(run, damaged))
        return
    whole = [each for each in found if each <= step and _has_index(found[each])]
    gone = [each for each in listed if not (directory / f"{each}.index").exists()]
    names = [f"{PREFIX}-{each}" for each in sorted(whole)]
    if listed != names:
        write_state(directory, names)
    place = f"the run goes on from step {step}"
    for each, reason in damaged.items():
        moved = _set_aside(run, found[each])
        say(f"checkpoint of step {each} is damaged and set aside in {moved} ({reason}); {place}")
    lost = [each for each in gone if f"{PREFIX}-{step}" != each and _newer(each, step)]
    for name in (each for each in lost if int(each.rpartition("-")[2]) not in damaged):
        say(f"checkpoint {name} is gone from {directory}; {place}")


def _recover_best(run: RunDirectory, say: Callable[[str], None]) -> None:
    directory = run.best
    remove_unfinished(directory)
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
        "the best of the evaluations to come takes its place"
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
    """Has TensorFlow check the checksum of every tensor, a group of them at a time in memory."""
    groups: list[list[str]] = [[]]
    held = 0
    for name, spec in reader.stored.items():
        size = tf.TensorShape(spec.shape).num_elements() * (tf.as_dtype(spec.dtype).size or 1)
        if groups[-1] and held + size > _GROUP_BYTES:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for names in filter(None, groups):
            # Not the reader's get_tensor: NumPy has no position in the input.
            tensors = tf.raw_ops.RestoreV2(
                prefix=reader.prefix,
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                dtypes=[tf.as_dtype(reader.stored[name].dtype) for name in names],
            )
            session.run(tensors[0].op)


def _set_aside(run: RunDirectory, files: list[Path]) -> Path:
    number = 1
    while (folder := run.path / "damaged" / f"{number:03d}").exists():
        number += 1
    folder.mkdir(parents=True)
    for file in files:
        if file.exists():
            file.rename(folder / file.name)
    return folder


def _none_whole(run: RunDirectory, damaged: dict[int, str]) -> Problem:
    return Problem(
        f"{run.path} cannot be resumed: none of its checkpoints is whole",
        "; ".join(f"step {step}: {reason}" for step, reason in damaged.items()),
        "restore their files from a copy, or start anew with resume=never",
    )


def _has_index(files: list[Path]) -> bool:
    return any(file.suffix == ".index" for file in files)


def _newer(name: str, step: int) -> bool:
    match = re.fullmatch(rf"{re.escape(PREFIX)}-(\d+)", name)
    return match is not None and int(match[1]) > step


def _one_line(text: str) -> str:
    """Returns what an error says, without where in the graph it arose."""
    _, node, said = text.partition("\nNode: ")
    lines = (said.splitlines()[1:] if node else text.strip().splitlines()) or ["unreadable"]
    return lines[0]
