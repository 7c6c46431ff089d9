"""Starts the tasks of a cluster as processes on this machine, and ends them together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.cluster.addresses import free_addresses
from runner.cluster.launcher_watch import LIFELINE, OBJECTIVE
from runner.cluster.tf_config import CHIEF, EVALUATOR, PS, VARIABLE, WORKER, write_tf_config
from runner.cluster_config import ClusterConfig
from runner.errors import ClusterError, ConfigError, PlanError, Problem
from runner.interruption import Interruption

_LOOK_SECONDS = 0.1
# Exit codes that another start would not change: a mistake in the command, a plan with problems.
_MISTAKES = (ConfigError.exit_code, PlanError.exit_code)


@dataclass
class _Task:
    kind: str
    index: int
    restarts: int
    process: subprocess.Popen[str]
    relay: threading.Thread

    @property
    def name(self) -> str:
        return self.kind if self.kind in (CHIEF, EVALUATOR) else f"{self.kind} {self.index}"


class LocalCluster:
    """The processes of one cluster."""

    def __init__(self, cluster: ClusterConfig, command: Sequence[str]) -> None:
        """Stores its arguments.

        Args:
          cluster: the configuration, with `local`.
          command: starts a task, which finds in `TF_CONFIG` which one it is.
        """
        self._cluster, self._command = cluster, list(command)
        self._tasks: list[_Task] = []
        self._printing = threading.Lock()

    def run(self) -> float | None:
        """Trains, and returns the objective.

        No process is left when it returns or raises.

        Raises:
          ClusterError: when a task has failed more often than `cluster.restarts`; its exit code is
            that of the task.
          InterruptedRunError: after a signal.
        """
        with (
            tempfile.TemporaryDirectory() as folder,
            Interruption().handled() as interruption,
        ):
            lifeline, held = os.pipe()
            objective = Path(folder) / "objective"
            self._environment = {
                **os.environ,
                "PYTHONPATH": _python_path(),
                LIFELINE: str(lifeline),
                OBJECTIVE: str(objective),
            }
            self._lifeline = lifeline
            try:
                with interruption.deferred():
                    self._start_all()
                    self._follow(interruption)
                    interruption.check()
            finally:
                self._end_all()
                os.close(held)
                os.close(lifeline)
            return float(objective.read_text()) if objective.exists() else None

    def _start_all(self) -> None:
        cluster = self._cluster
        found = free_addresses(cluster.ps + cluster.workers)
        self._addresses = {
            PS: tuple(found[: cluster.ps]),
            CHIEF: (found[cluster.ps],),
            WORKER: tuple(found[cluster.ps + 1 :]),
        }
        for kind, addresses in self._addresses.items():
            for index in range(len(addresses)):
                self._tasks.append(self._start(kind, index, cluster.restarts))
        if cluster.evaluator:
            self._tasks.append(self._start(EVALUATOR, 0, cluster.restarts))

    def _start(self, kind: str, index: int, restarts: int, *extra: str) -> _Task:
        addresses = {each: hosts for each, hosts in self._addresses.items() if hosts}
        process = subprocess.Popen(
            [*self._command, *extra],
            env={**self._environment, VARIABLE: write_tf_config(addresses, kind, index)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(self._lifeline,),
            text=True,
            errors="replace",
            # Ctrl-C in the terminal is for this process, which ends the tasks in their order.
            start_new_session=True,
        )
        task = _Task(kind, index, restarts, process, threading.Thread())
        task.relay = threading.Thread(target=self._relay, args=(task.name, process), daemon=True)
        task.relay.start()
        self._say(task.name, f"process {process.pid}")
        return task

    def _follow(self, interruption: Interruption) -> None:
        """Returns when the chief has ended well, or a signal has come."""
        while not interruption.received():
            for place, task in enumerate(self._tasks):
                code = task.process.poll()
                if code == 0 and task.kind == CHIEF:
                    self._await_others(interruption)
                    return
                if code:
                    self._tasks[place] = self._again(task, code)
            time.sleep(_LOOK_SECONDS)

    def _again(self, task: _Task, code: int) -> _Task:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        task.relay.join(_LOOK_SECONDS)
        if code in _MISTAKES or task.restarts == 0:
            error = ClusterError(
                Problem(
                    f"{task.name} {how}",
                    "" if code in _MISTAKES else "it was not to be started again (any more)",
                    "see its lines above; the same command continues the run"
                    + ("" if code in _MISTAKES else ", cluster.restarts=N starts tasks again"),
                )
            )
            error.exit_code = code if code > 0 else 1
            raise error
        self._say(task.name, f"{how}; it is started again, {task.restarts - 1} times left")
        # Even where a new run was asked for, the chief goes on with the one that it has begun.
        extra = ["resume=auto"] if task.kind == CHIEF else []
        return self._start(task.kind, task.index, task.restarts - 1, *extra)

    def _await_others(self, interruption: Interruption) -> None:
        deadline = time.monotonic() + self._cluster.grace_secs
        while any(task.process.poll() is None for task in self._tasks):
            if interruption.received() or time.monotonic() >= deadline:
                return
            time.sleep(_LOOK_SECONDS)

    def _end_all(self) -> None:
        """Ends the chief first: it needs the others to save; the parameter servers last."""
        for kinds, number in (
            ((CHIEF,), signal.SIGTERM),
            ((WORKER, EVALUATOR), signal.SIGTERM),
            # After a signal they would serve on for a chief, and they have nothing to save.
            ((PS,), signal.SIGKILL),
        ):
            living = [
                task for task in self._tasks if task.kind in kinds and task.process.poll() is None
            ]
            for task in living:
                _signal(task.process, number)
            deadline = time.monotonic() + self._cluster.grace_secs
            for task in living:
                try:
                    task.process.wait(max(deadline - time.monotonic(), 0.0))
                except subprocess.TimeoutExpired:
                    self._say(task.name, "does not end, and is killed")
                    _signal(task.process, signal.SIGKILL)
                    task.process.wait()
        for task in self._tasks:
            task.relay.join(1.0)

    def _relay(self, name: str, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            with process.stdout:
                for line in process.stdout:
                    self._say(name, line.rstrip("\n"))

    def _say(self, name: str, line: str) -> None:
        with self._printing:
            sys.stdout.write(f"[{name}] {line}\n")
            sys.stdout.flush()


def task_command(config_directories: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Returns the command that starts a task.

    Args:
      config_directories: what `--config-dir` named.
      overrides: those of the command that starts the cluster, of one job of a sweep.
    """
    options = [each for path in config_directories for each in ("--config-dir", path)]
    return [sys.executable, "-m", "runner", *options, *overrides]


def _signal(process: subprocess.Popen[str], number: int) -> None:
    with suppress(ProcessLookupError):  # It may have ended meanwhile.
        os.killpg(process.pid, number)


def _python_path() -> str:
    root, path = str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")
    return f"{root}{os.pathsep}{path}" if path else root
