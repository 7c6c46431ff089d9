"""Kills at every operation on files leave a run that continues as if there had been none."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.config.choices import Goal, Resume
from runner.hooks import BestCheckpoint
from runner.runs.resumption import ResumeCriteria, StartKind, claim_run
from runner.runs.run_directory import RunDirectory, RunRecord
from runner.runs.saved_checkpoints import PREFIX, recover, save, state
from runner.system.status import Status
from tests.support.kills import KILLS, Killed, killed_at

ENDS = ("data-00000-of-00001", "index")  # In this order.
KILLED_STEPS, STEPS = 2, 3

# Linux's inotify: a file that got this name, and the head of an event.
_MOVED_TO, _EVENT = 0x80, struct.Struct("iIII")


class _SaverInPython:
    """Saves like TensorFlow's saver, whose operations on files Python does not notice.

    `test_tensorflow_writes_the_index_last` shows that they are these.
    """

    def __init__(self, saver: tf.train.Saver, scratch: Path) -> None:
        self.real, self._scratch = saver, scratch
        self.as_saver_def = saver.as_saver_def

    def save(self, session: tf.Session, prefix: str, global_step: int, **options: Any) -> None:
        written = self.real.save(session, str(self._scratch / PREFIX), global_step, **options)
        for end in ENDS:
            target = Path(f"{prefix}-{global_step}.{end}")
            temporary = target.with_name(f"{target.name}.tempstate123")
            temporary.write_bytes(Path(f"{written}.{end}").read_bytes())
            temporary.rename(target)


@dataclass
class _Model:
    """A session whose only variable is 1000 times the step."""

    session: tf.Session
    variable: tf.Variable
    saver: Any

    def at(self, step: int) -> tf.Session:
        self.variable.load(np.full(1000, step, "float32"), self.session)
        return self.session


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Model]:
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable("w", [1000], use_resource=True)
        saver = tf.train.Saver(max_to_keep=1, save_relative_paths=True)
        yield _Model(session, variable, _SaverInPython(saver, tmp_path_factory.mktemp("scratch")))


def _save_newest(model: _Model, run: RunDirectory, step: int) -> None:
    save(model.at(step), model.saver, run.checkpoints, step)


def _save_best(model: _Model, run: RunDirectory, step: int) -> None:
    best = BestCheckpoint(model.saver, run.best, run.best_record, "loss", Goal.minimize)
    best._saver = model.saver
    assert best.offer(model.at(step), {"loss": 1.0 / step}, step)


def _content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()} if folder.is_dir() else {}


def _renamed(folder: Path, write: Callable[[], object]) -> list[str]:
    """Returns the new names of the files in a folder that a function renames, in their order."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK)
    try:
        assert libc.inotify_add_watch(descriptor, os.fsencode(folder), _MOVED_TO) >= 0
        write()
        events, names = os.read(descriptor, 2**16), []
    finally:
        os.close(descriptor)
    while events:
        *_, length = _EVENT.unpack_from(events)
        names.append(events[_EVENT.size : _EVENT.size + length].rstrip(b"\0").decode())
        events = events[_EVENT.size + length :]
    return names


@pytest.mark.parametrize("take", [_save_newest, _save_best])
def test_a_kill_in_a_save_costs_that_save_at_most(
    model: _Model, tmp_path: Path, take: Callable[[_Model, RunDirectory, int], None]
) -> None:
    """At every operation of the first save and of the second, which removes the first."""
    undisturbed = RunDirectory(tmp_path / "undisturbed")
    for step in range(1, STEPS + 1):
        take(model, undisturbed, step)
    for operation in itertools.count():
        run, done = RunDirectory(tmp_path / f"{operation}"), 0
        with suppress(Killed), killed_at(run.path, operation):
            for done in range(KILLED_STEPS):
                take(model, run, done + 1)
            break
        said: list[str] = []
        recover(run, said.append)
        assert not said, KILLS.last
        folder = run.checkpoints if take is _save_newest else run.best
        names = state(folder)
        newest = int(names[-1].removeprefix(f"{PREFIX}-")) if names else 0
        assert newest in (done, done + 1), KILLS.last
        # A best one is offered again: the run resumes from a step before its evaluation.
        for step in range(newest if take is _save_newest else done, STEPS):
            take(model, run, step + 1)
        assert _content(folder) == _content(undisturbed.path / folder.name), KILLS.last
    assert operation > 8 * KILLED_STEPS


def test_tensorflow_writes_the_index_last(model: _Model, tmp_path: Path) -> None:
    """Its operations, as Linux reports them, are those of `_SaverInPython`."""
    session, prefix = model.at(1), str(tmp_path / PREFIX)
    names = _renamed(
        tmp_path, lambda: model.saver.real.save(session, prefix, 1, write_meta_graph=False)
    )
    assert [name for name in names if name != "checkpoint"] == [f"{PREFIX}-1.{e}" for e in ENDS]


def test_a_kill_while_a_run_is_claimed_leaves_one_run(tmp_path: Path) -> None:
    record = RunRecord("e", "f", Status.RUNNING, {"train": {"steps": 1}})
    for operation in itertools.count():
        container = tmp_path / f"{operation}"
        container.mkdir()
        criteria = ResumeCriteria(container, record, Resume.auto)
        with suppress(Killed), killed_at(container, operation):
            claim_run(criteria).directory.release()
            break
        gc.collect()  # Gives back the locks, as the end of a process does.
        claimed = claim_run(criteria)
        assert claimed.start in (StartKind.new, StartKind.resumed)
        assert claimed.directory.path == container / "001", KILLS.last
        assert claimed.directory.read() == record
        claimed.directory.release()
    assert operation > 8
