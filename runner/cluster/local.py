"""Starts the tasks of a cluster as processes on this machine, and ends them together."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.cluster.trial_link import OBJECTIVE, TRIAL, TrialLink, has_begun
from runner.config.cluster_spec import VARIABLE, write_tf_config
from runner.config.schema import CHIEF, EVALUATOR, PS, WORKER, ClusterConfig
from runner.errors import ClusterError, ConfigError, PlanError, Problem
from runner.sweeps.job import Trial
from runner.system.lifeline import LIFELINE, redirect_to_devnull
from runner.system.signals import GRACE_SECONDS, Interruption

_LOOK_SECONDS = 0.1
# What the chief needs to end besides saving, and this process besides waiting for the tasks.
_MARGIN_SECONDS = 10.0
# How long tasks have to end where a parameter server is lost, without which nothing can be saved.
_LOST_SECONDS = 5.0
# Exit codes that another start would not change: a mistake in the command, a plan with problems.
_MISTAKES = (ConfigError.exit_code, PlanError.exit_code)
# Overrides that concern a sweep and not its trials, or the process that started the command.
_ELSEWHERE = re.compile(r"[+~]*hydra[./](mode|sweep|sweeper|launcher|callbacks)\b")


@dataclass
class _Task:
    """A task's process; `restarts` are left, and `relay` prints what it prints."""

    kind: str
    index: int
    name: str
    restarts: int
    process: subprocess.Popen[str]
    relay: threading.Thread

    def lives(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # It may have ended meanwhile.
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()


class LocalCluster:
    """The processes of one cluster.

    Args:
      cluster: the configuration, with `local`.
      command: starts a task, which finds in `TF_CONFIG` which one it is.
      save_seconds: how long the chief may take to save after a signal, `session.grace_seconds`.
      trial: what watches the run of the chief.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        command: Sequence[str],
        save_seconds: float = GRACE_SECONDS,
        trial: Trial | None = None,
    ) -> None:
        self._cluster, self._command = cluster, list(command)
        self._chief_seconds = max(cluster.grace_secs, save_seconds + _MARGIN_SECONDS)
        self._link = TrialLink(trial) if trial is not None else None
        self._tasks: list[_Task] = []
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._environment: dict[str, str] = {}
        self._printing = threading.Lock()

    def run(self) -> float | None:
        """Trains, and returns the objective.

        No process is left when it returns or raises.

        Raises:
          ClusterError: when a task has failed more often than `cluster.restarts`; its exit code is
            that of the task.
          PrunedRunError: when the trial is pruned; the last step is saved.
          InterruptedRunError: after a signal.
        """
        # Longer than `_end_all`, so that this process does not end before its tasks.
        seconds = self._chief_seconds + 2 * self._cluster.grace_secs + _MARGIN_SECONDS
        with (
            tempfile.TemporaryDirectory() as folder,
            Interruption(seconds).handled() as interruption,
        ):
            objective = Path(folder) / "objective"
            self._environment = {
                **os.environ,
                "PYTHONPATH": _python_path(),
                LIFELINE: str(os.getpid()),
                OBJECTIVE: str(objective),
            }
            try:
                with interruption.deferred():
                    self._start_all()
                    self._follow(interruption)
                    interruption.check()
            except ClusterError as error:
                # The others may take long to end.
                self._print("cluster", f"{error.problems[0].state}; the other tasks are ended")
                raise
            finally:
                try:
                    self._end_all()
                finally:
                    # A second signal does not wait for anything to be saved.
                    for task in filter(_Task.lives, self._tasks):
                        task.kill()
            if self._link is not None:
                self._link.end()
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

    def _start(self, kind: str, index: int, restarts: int) -> _Task:
        addresses = {each: hosts for each, hosts in self._addresses.items() if hosts}
        environment = {**self._environment, VARIABLE: write_tf_config(addresses, kind, index)}
        # Even where a new run was asked for, the chief resumes the one that it has begun.
        extra = ["resume=auto"] if kind == CHIEF and has_begun(self._environment) else []
        pipe = None
        if kind == CHIEF and self._link is not None:
            pipe, environment[TRIAL] = self._link.connect()
        process = subprocess.Popen(
            [*self._command, *extra],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[] if pipe is None else [pipe.fileno()],
            text=True,
            errors="replace",
            # Ctrl-C in the terminal is for this process, which ends the tasks in their order.
            start_new_session=True,
        )
        if pipe is not None:
            pipe.close()
        name = kind if kind in (CHIEF, EVALUATOR) else f"{kind} {index}"
        relay = threading.Thread(target=self._relay, args=(name, process), daemon=True)
        relay.start()
        self._print(name, f"process {process.pid}")
        return _Task(kind, index, name, restarts, process, relay)

    def _follow(self, interruption: Interruption) -> None:
        """Returns when the chief has ended well or pruned, or a signal has come."""
        while not interruption.received():
            pruned = self._link is not None and self._link.pruned
            for place, task in enumerate(self._tasks):
                code = task.process.poll()
                if task.kind == CHIEF and (code == 0 or (code and pruned)):
                    self._await_others(interruption)
                    return
                if code:
                    self._tasks[place] = self._restarted(task, code)
            if self._link is not None:
                self._link.check()
            time.sleep(_LOOK_SECONDS)

    def _restarted(self, task: _Task, code: int) -> _Task:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        task.relay.join(_LOOK_SECONDS)
        if code in _MISTAKES or task.restarts == 0:
            error = ClusterError(self._failed(f"{task.name} {how}", code))
            error.exit_code = code if code > 0 else 1
            raise error
        self._print(task.name, f"{how}; it is started again, {task.restarts - 1} times left")
        return self._start(task.kind, task.index, task.restarts - 1)

    def _failed(self, state: str, code: int) -> Problem:
        read = "its lines above say why"
        if code in _MISTAKES:
            cause = "started again at once it would end in the same way"
            return Problem(state, cause, f"{read}, and what to do")
        restarts = self._cluster.restarts
        cause = f"it has been started again {restarts} times (cluster.restarts)"
        remedy = "a larger one tries more often"
        if not restarts:
            cause = "cluster.restarts is 0, so that no task is started again"
            remedy = "cluster.restarts=N starts it again N times"
        return Problem(state, cause, f"{read}; {remedy}; the same command continues the run")

    def _await_others(self, interruption: Interruption) -> None:
        deadline = time.monotonic() + self._cluster.grace_secs
        while any(map(_Task.lives, self._tasks)):
            if interruption.received() or time.monotonic() >= deadline:
                return
            time.sleep(_LOOK_SECONDS)

    def _end_all(self) -> None:
        """Ends the chief first: it needs the others to save; the parameter servers last.

        Without one of the servers nothing can be saved, and all others end together.
        """
        lost = any(task.kind == PS and task.process.poll() not in (None, 0) for task in self._tasks)
        for kinds in [(CHIEF, WORKER, EVALUATOR)] if lost else [(CHIEF,), (WORKER, EVALUATOR)]:
            living = [task for task in self._tasks if task.kind in kinds and task.lives()]
            for task in living:
                task.signal(signal.SIGTERM)
            seconds = self._chief_seconds if CHIEF in kinds else self._cluster.grace_secs
            deadline = time.monotonic() + (min(seconds, _LOST_SECONDS) if lost else seconds)
            for task in living:
                try:
                    task.process.wait(max(deadline - time.monotonic(), 0.0))
                except subprocess.TimeoutExpired:
                    self._print(task.name, "does not end, and is killed")
                    task.kill()
        for task in self._tasks:
            # After a signal servers would serve on for a chief, and they have nothing to save.
            if task.kind == PS and task.lives():
                task.kill()
            task.relay.join(1.0)

    def _relay(self, name: str, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            with process.stdout:
                for line in process.stdout:
                    self._print(name, line.rstrip("\n"))

    def _print(self, name: str, line: str) -> None:
        with self._printing:
            try:
                sys.stdout.write(f"[{name}] {line}\n")
                sys.stdout.flush()
            except BrokenPipeError:
                # As `| head` does when it has enough: all tasks end in good order. What they still
                # print, and what the interpreter flushes when it ends, goes nowhere.
                redirect_to_devnull(sys.stdout.fileno())
                os.kill(os.getpid(), signal.SIGTERM)


def free_addresses(count: int, host: str = "127.0.0.1") -> list[str]:
    """Returns `count` different addresses at which no process listens."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [f"{host}:{probe.getsockname()[1]}" for probe in probes]


def task_command(running: Any, shipped: Path) -> list[str]:
    """Returns the command that starts a task with the configuration that Hydra is running.

    `shipped` is the folder of the configuration that a command has by default.
    """
    options = []
    for source in running.runtime.config_sources:
        path = f"pkg://{source.path}" if source.schema == "pkg" else source.path
        if source.provider == "command-line":
            options += ["--config-dir", path]
        elif source.provider == "main" and path != str(shipped):
            options += ["--config-path", path]
    if running.job.config_name != "config":
        options += ["--config-name", running.job.config_name]
    overrides = [
        *running.overrides.task,
        *(override for override in running.overrides.hydra if not _ELSEWHERE.match(override)),
        # The experiment's file may ask for a sweep.
        "hydra.mode=RUN",
    ]
    if running.job.chdir:
        # This process has gone to the folder that was asked for, and the tasks begin there.
        overrides += ["hydra.job.chdir=false", "hydra.run.dir=."]
    return [sys.executable, "-m", "runner", *options, *overrides]


def _python_path() -> str:
    root, path = str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")
    # The first of `sys.path` is the folder that this process was started in, if `-m` did.
    return os.pathsep.join(each for each in (root, sys.path[0], path) if each)
