"""Starts the tasks of a cluster as processes on this machine, and ends them together."""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from runner.config.cluster_spec import VARIABLE, write_tf_config
from runner.config.schema import CHIEF, EVALUATOR, PS, WORKER, ClusterConfig
from runner.errors import ClusterError, ConfigError, PlanError
from runner.system.imports import python_path
from runner.system.lifeline import LIFELINE
from runner.system.signals import GRACE_SECONDS, Interruption

_POLL_SECONDS = 0.1
# The chief's time to end besides saving, and this process's besides waiting for the tasks.
_MARGIN_SECONDS = 10.0
# Exit codes that a restart would not change: a mistake in the command, a plan with problems.
_MISTAKES = (ConfigError.exit_code, PlanError.exit_code)
# Overrides that concern the process that started the command.
_NOT_FOR_TASKS = re.compile(r"[+~]*hydra[./](mode|callbacks)\b")
# Variable in the environment of a chief: the file to create once its run has begun or resumed.
BEGUN = "RUNNER_BEGUN_FILE"


@dataclass
class _Task:
    """A task's process, how many restarts are left, and the thread that prints its lines."""

    kind: str
    index: int
    name: str
    restarts: int
    process: subprocess.Popen[str]
    relay: threading.Thread

    def is_alive(self) -> bool:
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
      command: starts a task, which reads its role in `TF_CONFIG`.
      save_seconds: how long the chief may take to save after a signal, `session.grace_seconds`.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        command: Sequence[str],
        *,
        save_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._cluster, self._command = cluster, list(command)
        self._chief_seconds = max(cluster.grace_secs, save_seconds + _MARGIN_SECONDS)
        self._tasks: list[_Task] = []
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._environment: dict[str, str] = {}
        self._printing = threading.Lock()

    def run(self) -> None:
        """Trains; no process is left when it returns or raises.

        Raises:
          ClusterError: when a task has failed more often than `cluster.restarts`, with the exit
            code of the task.
          ConfigError: when other networks could reach the tasks, and `cluster.exposed` is false.
          InterruptedRunError: after a signal.
        """
        # Longer than `_end_all`, so that this process does not end before its tasks.
        seconds = self._chief_seconds + 2 * self._cluster.grace_secs + _MARGIN_SECONDS
        with (
            tempfile.TemporaryDirectory() as folder,
            Interruption(seconds).handled() as interruption,
        ):
            self._environment = {
                **os.environ,
                # The first of `sys.path` is the folder that this process was started in, by `-m`.
                "PYTHONPATH": python_path(sys.path[0]),
                LIFELINE: str(os.getpid()),
                BEGUN: str(Path(folder) / "begun"),
            }
            interruption.promise_resume()
            try:
                with interruption.deferred():
                    self._start_all()
                    self._follow(interruption)
            except ClusterError as error:
                # The others may take long to end.
                self._print("cluster", f"{error.problems[0].state}; the other tasks are ended")
                raise
            finally:
                try:
                    self._end_all()
                finally:
                    # A second signal does not wait for anything to be saved.
                    for task in filter(_Task.is_alive, self._tasks):
                        task.kill()
            chief = next(task for task in self._tasks if task.kind == CHIEF)
            if chief.process.returncode != 0:
                interruption.check()

    def _start_all(self) -> None:
        cluster = self._cluster
        public = public_addresses()
        if public and not cluster.exposed:
            raise ConfigError.of(
                f"a local cluster would listen at {', '.join(public)}, which is public",
                "TensorFlow's servers listen on all interfaces, and run what anyone sends, without "
                "a password",
                "cluster.exposed=true if a firewall closes the ports of this machine",
            )
        self._print("cluster", "its servers listen on all interfaces, without a password")
        free = free_addresses(cluster.ps + cluster.workers)
        self._addresses = {
            PS: tuple(free[: cluster.ps]),
            CHIEF: (free[cluster.ps],),
            WORKER: tuple(free[cluster.ps + 1 :]),
        }
        for kind, addresses in self._addresses.items():
            for index in range(len(addresses)):
                self._tasks.append(self._start(kind, index, cluster.restarts))
        if cluster.evaluator:
            self._tasks.append(self._start(EVALUATOR, 0, cluster.restarts))

    def _start(self, kind: str, index: int, restarts: int) -> _Task:
        addresses = {role: hosts for role, hosts in self._addresses.items() if hosts}
        environment = {**self._environment, VARIABLE: write_tf_config(addresses, kind, index)}
        # Even if the command asks for a new run, the chief resumes the run that it has begun.
        has_begun = kind == CHIEF and Path(self._environment[BEGUN]).exists()
        extra = ["resume=auto"] if has_begun else []
        process = subprocess.Popen(
            [*self._command, *extra],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C in the terminal is for this process, which ends the tasks in their order.
            start_new_session=True,
        )
        name = kind if kind in (CHIEF, EVALUATOR) else f"{kind} {index}"
        relay = threading.Thread(target=self._relay, args=(name, process), daemon=True)
        relay.start()
        self._print(name, f"process {process.pid}")
        return _Task(kind, index, name, restarts, process, relay)

    def _follow(self, interruption: Interruption) -> None:
        """Waits until the chief has succeeded, or a signal has come."""
        while not interruption.received():
            for position, task in enumerate(self._tasks):
                code = task.process.poll()
                if task.kind == CHIEF and code == 0:
                    self._await_others(interruption)
                    return
                if code:
                    self._tasks[position] = self._restarted(task, code)
            time.sleep(_POLL_SECONDS)

    def _restarted(self, task: _Task, code: int) -> _Task:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        task.relay.join(_POLL_SECONDS)
        if code in _MISTAKES or task.restarts == 0:
            cause, remedy = "a restart would end in the same way", "its lines above say what to do"
            if code not in _MISTAKES:
                cause = f"cluster.restarts is {self._cluster.restarts}, and no restart is left"
                remedy = "its lines above say why; the same command continues the run"
            error = ClusterError.of(f"{task.name} {how}", cause, remedy)
            error.exit_code = code if code > 0 else 1
            raise error
        self._print(task.name, f"{how}; it is started again, {task.restarts - 1} times left")
        return self._start(task.kind, task.index, task.restarts - 1)

    def _await_others(self, interruption: Interruption) -> None:
        deadline = time.monotonic() + self._cluster.grace_secs
        while any(map(_Task.is_alive, self._tasks)):
            if interruption.received() or time.monotonic() >= deadline:
                return
            time.sleep(_POLL_SECONDS)

    def _end_all(self) -> None:
        """Ends the chief first: it needs the others to save; the parameter servers last."""
        for kinds, seconds in (
            ((CHIEF,), self._chief_seconds),
            ((WORKER, EVALUATOR), self._cluster.grace_secs),
        ):
            alive = [task for task in self._tasks if task.kind in kinds and task.is_alive()]
            for task in alive:
                task.signal(signal.SIGTERM)
            deadline = time.monotonic() + seconds
            for task in alive:
                try:
                    task.process.wait(max(deadline - time.monotonic(), 0.0))
                except subprocess.TimeoutExpired:
                    self._print(task.name, "does not end, and is killed")
                    task.kill()
        for task in self._tasks:
            # After a signal servers would continue to serve a chief, and they have nothing to save.
            if task.kind == PS and task.is_alive():
                task.kill()
            task.relay.join(1.0)

    def _relay(self, name: str, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            with process.stdout:
                for line in process.stdout:
                    self._print(name, line.rstrip("\n"))

    def _print(self, name: str, line: str) -> None:
        with self._printing:
            print(f"[{name}] {line}", flush=True)


def report_begun(environ: Mapping[str, str]) -> None:
    """Reports to the process that started this one, if any, that a run is begun or resumed."""
    file = environ.get(BEGUN)
    if file is not None:
        Path(file).touch()


def public_addresses() -> list[str]:
    """Returns the addresses of this machine that are not private."""
    addresses = [
        address.address.partition("%")[0]
        for interface in psutil.net_if_addrs().values()
        for address in interface
        if address.family in (socket.AF_INET, socket.AF_INET6)
    ]
    return [address for address in addresses if ipaddress.ip_address(address).is_global]


def free_addresses(count: int) -> list[str]:
    """Returns `count` different addresses at which no process listens."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]


def task_command(running: Any, shipped: Path) -> list[str]:
    """Returns the command that starts a task with the configuration that Hydra is running.

    `shipped` is the folder of the default configuration.
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
        *(override for override in running.overrides.hydra if not _NOT_FOR_TASKS.match(override)),
        # The experiment's file may ask for a sweep.
        "hydra.mode=RUN",
    ]
    if running.job.chdir:
        # This process has changed to the requested folder, where the tasks start.
        overrides += ["hydra.job.chdir=false", "hydra.run.dir=."]
    return [sys.executable, "-m", "runner", *options, *overrides]
