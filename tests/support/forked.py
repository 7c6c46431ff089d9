"""Processes that `tests.support.forks` forks, with the interface of `subprocess.Popen`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from runner.system.imports import LEVEL

ROOT = Path(__file__).resolve().parents[2]
_LOOK_SECONDS = 0.02
_INPUT, _OUTPUT, _ERRORS = 0, 1, 2


class Forked(subprocess.Popen[str]):
    """Runs `python -m MODULE ARGUMENTS` in a fork of a process that has imported everything.

    The arguments are those of `subprocess.Popen`, but `server`, that process's address, and
    `slow_saves`: saves take as long as on a slow disk, and this file exists during each; and
    `killed_at`: it is killed after so many operations that change files in `runs`.
    """

    def __init__(
        self,
        server: str,
        command: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        text: bool = True,
        errors: str | None = None,
        start_new_session: bool = False,
        slow_saves: Path | None = None,
        killed_at: int | None = None,
    ) -> None:
        # Popen's own constructor would start another process.
        _, option, module, *arguments = command
        assert (option, text) == ("-m", True)
        self._server, self.args, self.returncode = server, list(command), None
        self.stdin, self.stdout, self.stderr = None, None, None
        theirs: dict[int, int] = {}
        for place, stream in ((_INPUT, stdin), (_OUTPUT, stdout), (_ERRORS, stderr)):
            theirs[place] = self._stream(place, stream, theirs, errors)
        request = {
            "module": module,
            "arguments": arguments,
            "folder": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "descriptors": list(theirs),
            "parent": os.getpid(),
            "session": start_new_session,
            "slow_saves": None if slow_saves is None else str(slow_saves),
            "killed_at": killed_at,
        }
        self.pid = self._ask(request, list(theirs.values()))
        for descriptor in set(theirs.values()) - {_INPUT, _OUTPUT, _ERRORS}:
            os.close(descriptor)

    def _stream(
        self, place: int, stream: int | None, theirs: Mapping[int, int], errors: str | None
    ) -> int:
        """Returns the descriptor for the process, the other end of a pipe being kept."""
        if stream is None:
            return place
        if stream == subprocess.DEVNULL:
            return os.open(os.devnull, os.O_RDWR)
        if stream == subprocess.STDOUT:
            return theirs[_OUTPUT]
        if stream != subprocess.PIPE:
            return os.dup(stream)
        output, into = os.pipe()
        if place == _INPUT:
            self.stdin = open(into, "w", errors=errors)  # noqa: SIM115 - Popen's attribute
            return output
        mine = open(output, errors=errors)  # noqa: SIM115 - likewise
        if place == _OUTPUT:
            self.stdout = mine
        else:
            self.stderr = mine
        return into

    def _ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Any:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._server)
            socket.send_fds(connection, [b"\n"], descriptors)
            with connection.makefile("rw") as stream:
                stream.write(f"{json.dumps(request)}\n")
                stream.flush()
                return json.loads(stream.readline())

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            try:
                self.returncode = self._ask({"poll": self.pid})
            except OSError:  # The server has ended, and has killed it.
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code, once it has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(_LOOK_SECONDS)
        return code

    def communicate(
        self, input: str | None = None, timeout: float | None = None
    ) -> tuple[Any, Any]:
        """Returns all output, once it has ended."""
        assert input is None
        outputs = ["", ""]

        def read(place: int, stream: IO[str]) -> None:
            with stream:
                outputs[place] = stream.read()

        readers = [
            threading.Thread(target=read, args=(place, stream), daemon=True)
            for place, stream in enumerate((self.stdout, self.stderr))
            if stream is not None and not stream.closed
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return outputs[0], outputs[1]

    def send_signal(self, sig: int) -> None:
        """Sends it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.Signals(sig))


def environment() -> dict[str, str]:
    """Returns this process's, without the log level that a test of the command line sets in it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop(LEVEL, None)
    return environment


class Forks:
    """The process that forks, started when one of the test processes first needs it.

    It ends with the last process that has opened the FIFO in `folder` for writing.

    Args:
      folder: the same for all test processes of a run of the tests.
      root: the folder whose package `runner` is imported; by default the repository.
    """

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.root = root
        self._users, self._address = folder / "users", str(folder / "forks")
        self._lock = FileLock(folder / "forks.lock")
        self._lifeline: int | None = None
        self._server: subprocess.Popen[str] | None = None

    def start(self, command: Sequence[str], **options: Any) -> Forked:
        """Starts a fork; the arguments are those of `Forked`."""
        if self._lifeline is None:
            with self._lock:
                self._lifeline = self._join()
        return Forked(self._address, command, **options)

    def _join(self) -> int:
        with contextlib.suppress(OSError):  # Nothing reads: no server lives.
            return os.open(self._users, os.O_WRONLY | os.O_NONBLOCK)
        for path in (self._users, Path(self._address)):
            path.unlink(missing_ok=True)
        os.mkfifo(self._users)
        reader = os.open(self._users, os.O_RDONLY | os.O_NONBLOCK)
        lifeline = os.open(self._users, os.O_WRONLY)
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forks", self._address],
            cwd=self.root,
            env=environment() | {"PYTHONPATH": f"{self.root}{os.pathsep}{ROOT}"},
            stdin=reader,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C in the terminal is for the tests, which then end it.
            start_new_session=True,
        )
        os.close(reader)
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "ready\n"
        return lifeline

    def close(self) -> None:
        """Ends all that is left, once no other test process needs it."""
        if self._lifeline is not None:
            os.close(self._lifeline)
        if self._server is not None:
            self._server.communicate()
