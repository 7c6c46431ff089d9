"""Starts many `python -m runner` cheaply: one process imports everything, its forks run.

TensorFlow and MLflow are imported and not used before a fork, so that nothing of them, no thread
and no session, is shared: a fork differs from an interpreter of its own in nothing but the seconds
that importing takes. The followers and tasks of a cluster that forks start are forks too.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra._internal.hydra import Hydra
from hydra.core.plugins import Plugins

from runner.system.imports import LEVEL, without_collections, without_import_notes
from runner.system.lifeline import LIFELINE
from tests.support.forked import Forked

_LOOK_SECONDS = 0.05
_STDIN = 0
# No library has opened a file of such a number.
_OUT_OF_THE_WAY = 500


# What a run, its follower, a sweep, a task of a cluster and the experiments of the tests import.
MODULES = (
    "alembic.command",
    "experiments.digits",
    "experiments.models",
    "hydra_plugins.runner_sweepers.grid",
    "hydra_plugins.runner_sweepers.optuna",
    "mlflow",
    "mlflow.store.model_registry.sqlalchemy_store",
    "optuna.samplers",
    "optuna.storages._rdb.models",
    "runner.commands.command_line",
    "runner.cluster.chief",
    "runner.commands.run_experiment",
    "runner.lifecycle",
    "runner.sweeps.study_figures",
    "runner.sweeps.grid_sweeper",
    "runner.sweeps.optuna_sweeper",
    "runner.sweeps.search",
    "runner.tracking.__main__",
    "runner.tracking.mlflow_store",
    "sqlalchemy.dialects.sqlite",
    "tests.samples.experiment",
    "tests.samples.hooks",
    "tests.samples.odd",
    "tests.support.recording",
)


def import_everything() -> None:
    """Imports `MODULES`, and the plugins that Hydra finds."""
    with without_import_notes(), without_collections():
        for module in MODULES:
            importlib.import_module(module)
        with suppress(ModuleNotFoundError):  # Not in MLflow 3.8 and older.
            importlib.import_module("mlflow.store.tracking.sqlalchemy_workspace_store")
        Plugins.instance()
    del os.environ[LEVEL]
    for module in ("runner.tracking.__main__", "tests.support.recording"):
        # They are run as `__main__`, and no module imports them.
        del sys.modules[module]


class Server:
    """Forks processes on request and reports how they ended; ends with its standard input."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._living: set[int] = set()
        self._ended: dict[int, int] = {}

    def serve(self) -> dict[str, Any] | None:
        """Answers requests; in a fork, returns its own."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(100)
            print("ready", flush=True)
            sources: list[socket.socket | int] = [listener, _STDIN]
            while True:
                readable, _, _ = select.select(sources, [], [], _LOOK_SECONDS)
                self._reap()
                if _STDIN in readable and not os.read(_STDIN, 1):
                    for pid in self._living:
                        os.kill(pid, signal.SIGKILL)
                    return None
                if listener in readable:
                    connection, _ = listener.accept()
                    with connection:
                        request = self._answer(connection)
                    if request is not None:
                        return request

    def _answer(self, connection: socket.socket) -> dict[str, Any] | None:
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 16)
        with connection.makefile("rw") as stream:
            request: dict[str, Any] = json.loads(stream.readline())
            if "poll" in request:
                self._reap()
                answer = self._ended.get(request["poll"])
            else:
                answer = os.fork()
                if answer == 0:
                    request["received"] = descriptors
                    return request
                self._ended.pop(answer, None)  # Numbers of processes come again.
                self._living.add(answer)
                for descriptor in descriptors:
                    os.close(descriptor)
            stream.write(f"{json.dumps(answer)}\n")
        return None

    def _reap(self) -> None:
        while self._living:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._living.discard(pid)
            self._ended[pid] = os.waitstatus_to_exitcode(status)


def slow_saves(marker: Path) -> None:
    """Makes saves take as long as on a slow disk, and a file exist as long as one is under way."""
    import runner.hooks.checkpoint

    # Any: modules, whose functions are exchanged.
    hook: Any = runner.hooks.checkpoint
    system: Any = os
    save, fsync = hook.save, os.fsync

    def marked(*arguments: Any) -> None:
        marker.touch()
        save(*arguments)
        marker.unlink()

    def slow(descriptor: int) -> None:
        time.sleep(0.02)
        fsync(descriptor)

    hook.save, system.fsync = marked, slow


def parent_of(request: dict[str, Any]) -> int:
    """Returns the process that asked for a fork, as if it were the parent; 1 when it has ended."""
    asking: int = request["parent"]
    try:
        os.kill(asking, 0)
    except ProcessLookupError:
        return 1
    return asking


def become(address: str, request: dict[str, Any]) -> None:
    """Makes a fork the process that was asked for."""
    import runner.cluster.local
    import runner.tracking.follower_process

    # Any: modules and a class whose functions are exchanged.
    system: Any = os
    system.getppid = functools.partial(parent_of, request)
    # Hydra composes each command once more, to see if a configuration sets `hydra.mode`: none does.
    composing: Any = Hydra
    composing.get_mode = lambda *_, **__: None
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    sys.path[0] = request["folder"]  # As `python -m` does.
    os.environ.clear()
    os.environ.update(request["environment"])
    if LIFELINE in os.environ:
        # A fork's parent is not the process that asked for it: it does not notice that one's death.
        os.environ[LIFELINE] = str(os.getppid())
    # First all out of the way: a number may be that of another one here.
    moved = [
        fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
        for descriptor in request["received"]
    ]
    for descriptor in request["received"]:
        os.close(descriptor)
    for descriptor, place in zip(moved, request["descriptors"], strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)
    if request["slow_saves"] is not None:
        slow_saves(Path(request["slow_saves"]))
    if request["killed_at"] is not None:
        from tests.support.kills import kill_at

        kill = functools.partial(os.kill, os.getpid(), signal.SIGKILL)
        kill_at(Path.cwd() / "runs", request["killed_at"], kill)
    forking = types.SimpleNamespace(**vars(subprocess))
    forking.Popen = functools.partial(Forked, address)
    # Any: modules, one of whose imports is exchanged.
    starting: tuple[Any, ...] = (runner.tracking.follower_process, runner.cluster.local)
    for module in starting:
        module.subprocess = forking
    sys.argv[1:] = request["arguments"]


def run(module: str) -> None:
    """Runs a module to the end of its process, whose million objects are not freed one by one.

    That takes 0.3 s of processor time, a sixth of a short run. The rest of an interpreter's end
    takes place: threads end, and what is registered to be called is called.
    """
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    # Any: modules, whose private functions `multiprocessing` calls at the end of its forks too.
    threads: Any = threading
    at_exit: Any = atexit
    threads._shutdown()
    at_exit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    import_everything()
    assert threading.active_count() == 1, "a thread does not survive a fork"
    # Python 3.12 warns of Arrow's thread too, which sees to forks itself.
    warnings.filterwarnings("ignore", ".* is multi-threaded", DeprecationWarning)
    server = Server(sys.argv[1])
    request = server.serve()
    if request is not None:
        become(server.address, request)
        run(request["module"])
