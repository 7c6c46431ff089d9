"""Hooks that disturb a run, chosen in the configuration like a user's hooks."""

from __future__ import annotations

import collections
import gc
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import tensorflow.compat.v1 as tf


class DevicesSeen(tf.train.SessionRunHook):
    """Appends a line to a file as a run begins and ends: which, and the visible devices."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    def begin(self) -> None:
        self._append("begin")

    def end(self, session: tf.Session) -> None:
        self._append("end")

    def _append(self, event: str) -> None:
        with self._file.open("a") as stream:
            stream.write(f"{event} {os.environ['CUDA_VISIBLE_DEVICES']}\n")


class AtStep(tf.train.SessionRunHook):
    """Does something after a step, and only once in the life of `marker`, a file."""

    def __init__(self, step: int, marker: str) -> None:
        self.step, self.marker = step, Path(marker)

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs(tf.train.get_global_step())

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        if run_context.session.run(tf.train.get_global_step()) == self.step:
            if self.marker.exists():
                return
            self.marker.touch()
            self.act()

    def act(self) -> None:
        """Does it."""
        raise NotImplementedError


class FailOnce(AtStep):
    """Raises a ValueError."""

    def act(self) -> None:
        raise ValueError("the hook failed")


class AbortOnce(AtStep):
    """Raises what TensorFlow raises when a worker is preempted."""

    def act(self) -> None:
        raise tf.errors.AbortedError(None, None, "preempted")


class SpoilOnce(AtStep):
    """Makes a weight NaN, so that the loss of the next step is."""

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        self.session = run_context.session
        super().after_run(run_context, run_values)

    def act(self) -> None:
        weight = tf.trainable_variables()[0]
        value = weight.initializer.inputs[1]
        self.session.run(weight.initializer, {value: np.full(weight.shape, np.nan)})


class SignalOnce(AtStep):
    """Sends this process a signal."""

    def __init__(self, step: int, marker: str, number: int) -> None:
        super().__init__(step, marker)
        self.number = signal.Signals(number)

    def act(self) -> None:
        os.kill(os.getpid(), self.number)


class WaitOnce(AtStep):
    """Waits until the file `marker`.go exists, so that a test may look at a living run."""

    def act(self) -> None:
        while not self.marker.with_suffix(".go").exists():
            time.sleep(0.05)


class Slow(tf.train.SessionRunHook):
    """Makes steps take a while, and touches a file at the first."""

    def __init__(self, seconds: float, marker: str) -> None:
        self.seconds, self.marker = seconds, Path(marker)

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self.marker.touch()

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        time.sleep(self.seconds)


class SetClockBack(AtStep):
    """Sets the clock of this process back by an hour after a step."""

    def act(self) -> None:
        now, now_ns = time.time, time.time_ns
        time.time = lambda: now() - 3600.0
        time.time_ns = lambda: now_ns() - 3600 * 10**9


class FillDisk(tf.train.SessionRunHook):
    """Fills the disk after a step, and makes room after another, if the file `small` exists."""

    def __init__(self, folder: str, step: int, until: int) -> None:
        self.filler, self.step, self.until = Path(folder) / "filler", step, until

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        step = run_context.session.run(tf.train.get_global_step())
        if step == self.step and Path("small").exists():
            disk = os.statvfs(self.filler.parent)
            self.filler.write_bytes(bytes(disk.f_bavail * disk.f_frsize))
        elif step == self.until:
            self.filler.unlink(missing_ok=True)


class LockFolder(AtStep):
    """Makes a folder and all in it unwritable; the super-user becomes another user."""

    def __init__(self, step: int, marker: str, folder: str) -> None:
        super().__init__(step, marker)
        self.folder = Path(folder)

    def act(self) -> None:
        for path in (self.folder, *self.folder.rglob("*")):
            path.chmod(0o555)
        if os.geteuid() == 0:
            os.seteuid(65534)


class Leave(AtStep):
    """Goes to another working directory, when it is made too."""

    def __init__(self, step: int, marker: str, folder: str) -> None:
        super().__init__(step, marker)
        self.folder = folder
        self.act()

    def act(self) -> None:
        os.chdir(self.folder)


class Overwrite(AtStep):
    """Makes a file unreadable."""

    def __init__(self, step: int, marker: str, file: str) -> None:
        super().__init__(step, marker)
        self.file = Path(file)

    def act(self) -> None:
        self.file.write_bytes(b"not what it was" * 1000)


class Listing(tf.train.SessionRunHook):
    """Prints, when the first step is done, all modules and how many threads of each name, as JSON.

    Threads are named on Linux; `Python` is how many are Python's.
    """

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        if run_context.session.run(tf.train.get_global_step()) == 1:
            names = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
            threads = {**collections.Counter(names), "Python": threading.active_count()}
            print(json.dumps({"modules": list(sys.modules), "threads": threads}))


class Footprint(tf.train.SessionRunHook):
    """Writes, as a run begins, what its process takes: megabytes, threads and open files."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    def begin(self) -> None:
        gc.collect()
        process = psutil.Process()
        resources = [process.memory_info().rss / 1e6, threading.active_count(), process.num_fds()]
        with self.file.open("a") as stream:
            stream.write(f"{json.dumps(resources)}\n")
