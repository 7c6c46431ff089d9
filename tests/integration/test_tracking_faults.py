"""Real processes and a real MLflow server that die, hang and come back while a run records."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO

import pytest
from mlflow import MlflowClient

from runner.tracking.tracking_directory import TrackingDirectory

# Steps 1, 2, ... as fast as lines come: `+ N` records N steps, `end` closes the run.
RUN = """
import sys, time
from pathlib import Path
from runner.config.schema import TrackingConfig
from runner.tracking import open_store
directory, uri, start = sys.argv[1:]
config = TrackingConfig(uri=uri, close_seconds=60.0, patience_seconds=3.0)
tracker = open_store(config, {}).open(Path(directory), "faults", "one", {"host": "here"})
tracker.log_parameters({"rate": 0.1})
step = int(start)
tracker.rewind(step)
for line in sys.stdin:
    if line.startswith("+"):
        began = time.perf_counter()
        for _ in range(int(line[1:])):
            step += 1
            tracker.log_metrics({"loss": step / 3}, step)
        print(time.perf_counter() - began, flush=True)
    elif line.startswith("end"):
        tracker.close(Status.FINISHED)
"""


class Run:
    """A process that records steps when it is told to."""

    def __init__(self, directory: Path, uri: str, start: int = 0) -> None:
        self.directory = TrackingDirectory(directory)
        self.uri = uri
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(directory), uri, str(start)],
            # A request to a server that hangs is given up sooner than it is otherwise.
            env={
                **os.environ,
                "MLFLOW_HTTP_REQUEST_TIMEOUT": "3",
                "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def record(self, steps: int) -> float:
        """Returns how many seconds the steps took."""
        self._say(f"+ {steps}")
        return float(_piped(self.process.stdout).readline())

    def end(self) -> str:
        """Returns what the run said."""
        self._say("end")
        _, errors = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, errors
        return errors

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def delivered(self, steps: int, uri: str | None = None) -> None:
        """Waits until the store has so many steps."""
        wait_for(lambda: len(history(self, uri)) == steps)

    def _say(self, line: str) -> None:
        stdin = _piped(self.process.stdin)
        stdin.write(f"{line}\n")
        stdin.flush()


def _piped(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def history(run: Run, uri: str | None = None) -> list[tuple[int, float]]:
    """Steps and values as the store has them."""
    run_id = run.directory.position(run.uri).run_id
    if run_id is None:
        return []
    client = MlflowClient(tracking_uri=uri or run.uri)
    return sorted((m.step, m.value) for m in client.get_metric_history(run_id, "loss"))


def twin(steps: int) -> list[tuple[int, float]]:
    return [(step, step / 3) for step in range(1, steps + 1)]


def status(run: Run, uri: str | None = None) -> str:
    run_id = run.directory.position(run.uri).run_id
    return str(MlflowClient(tracking_uri=uri or run.uri).get_run(str(run_id)).info.status)


def sync(run: Run) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runner.sync", str(run.directory.run_directory)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def follower_is_at_work(run: Run) -> bool:
    lock = run.directory.delivery_lock(run.uri)
    try:
        with lock.acquire(timeout=0):
            return False
    except TimeoutError:
        return True


# A local database


def test_a_run_that_is_killed_has_its_last_point_delivered_and_is_killed(
    tmp_path: Path, database: Path
) -> None:
    run = Run(tmp_path / "run", f"sqlite:///{database}")
    run.record(500)
    run.kill()  # Long before MLflow is imported.
    wait_for(lambda: run.directory.position(run.uri).status == "KILLED")
    assert history(run) == twin(500)
    assert status(run) == "KILLED"
    wait_for(lambda: not follower_is_at_work(run))
    # The same command goes on from its checkpoint.
    again = Run(tmp_path / "run", run.uri, start=400)
    again.record(300)
    again.delivered(700)
    assert status(again) == "RUNNING"
    assert again.end() == ""
    assert history(again) == twin(700)
    assert status(again) == "FINISHED"
    assert len(set(MlflowClient(tracking_uri=run.uri).search_runs(["1"]))) == 1


def test_when_both_die_the_next_start_delivers_the_rest(tmp_path: Path, database: Path) -> None:
    run = Run(tmp_path / "run", f"sqlite:///{database}")
    run.record(100)
    run.delivered(100)
    run.record(5000)
    kill_follower(run)
    run.kill()
    delivered = len(history(run))
    assert 100 <= delivered < 5100
    again = Run(tmp_path / "run", run.uri, start=5000)
    again.record(200)
    assert again.end() == ""
    assert history(again) == twin(5200)


def kill_follower(run: Run) -> None:
    """Kills the processes that run `runner.sync` as children of the run."""
    found = subprocess.run(
        ["pgrep", "-P", str(run.process.pid), "-f", "runner.sync"],
        capture_output=True,
        text=True,
        check=True,
    )
    for pid in found.stdout.split():
        os.kill(int(pid), signal.SIGKILL)


# A server


class Server:
    """A real MLflow server."""

    def __init__(self, database: Path, port: int) -> None:
        self.database, self.port = database, port
        self.uri = f"http://127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--workers", "1"]
        self._process = subprocess.Popen(
            [*command, "--backend-store-uri", f"sqlite:///{self.database}"],
            cwd=self.database.parent,
            # Without eight further processes, which run jobs.
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_for(self._answers, 120.0)

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with closing(HTTPConnection("127.0.0.1", self.port, timeout=5)) as connection:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
        except OSError:
            return False


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def server(migrated_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    database = tmp_path_factory.mktemp("server") / "mlflow.db"
    shutil.copy(migrated_database, database)
    server = Server(database, free_port())
    server.start()
    yield server
    server.kill()


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on, or answers 500, or hangs, as it is told to."""

    target = 0
    fault = ""
    released = threading.Event()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.fault == "hang":
            self.released.wait(60.0)
            return
        with closing(HTTPConnection("127.0.0.1", self.target)) as connection:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
        # The store has taken it by now: what is lost is the answer.
        self.send_response(500 if self.fault == "500" else answer.status)
        self.send_header("Content-Type", "application/json")
        content = b'{"error_code": "INTERNAL_ERROR"}' if self.fault == "500" else content
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Keeps the output clean."""


@contextmanager
def proxy(server: Server, port: int) -> Iterator[type[Proxy]]:
    class Handler(Proxy):
        target = server.port
        released = threading.Event()

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as service:
        thread = threading.Thread(target=service.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield Handler
        finally:
            Handler.released.set()
            service.shutdown()
            thread.join()


def test_a_server_that_answers_500_or_hangs_gets_each_point_once(
    tmp_path: Path, server: Server
) -> None:
    port = free_port()
    with proxy(server, port) as handler:
        run = Run(tmp_path / "run", f"http://127.0.0.1:{port}")
        run.record(200)
        run.delivered(200, server.uri)
        for fault in ("500", "hang"):
            handler.fault = fault
            before = interruptions(run)
            assert run.record(700) < 2.0
            wait_for(partial(more_interruptions, run, before))
        handler.fault = ""
        handler.released.set()
        run.end()
        assert history(run, server.uri) == twin(1600)
        assert status(run, server.uri) == "FINISHED"


def interruptions(run: Run) -> int:
    return run.directory.log.read_text().count("interrupted")


def more_interruptions(run: Run, before: int) -> bool:
    return interruptions(run) > before


def test_what_a_server_that_is_gone_lacks_is_delivered_later(
    tmp_path: Path, server: Server
) -> None:
    port = free_port()
    run = Run(tmp_path / "run", f"http://127.0.0.1:{port}")
    run.record(1500)
    said = run.end()
    assert said.count("Tracking is interrupted") == 1
    assert f"python -m runner.sync {tmp_path}/run" in said
    # The follower has given up by itself.
    assert not follower_is_at_work(run)
    with proxy(server, port):
        done = sync(run)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert history(run, server.uri) == twin(1500)
    assert status(run, server.uri) == "FINISHED"


def test_a_server_that_is_killed_and_restarted_costs_no_point_and_no_step(
    tmp_path: Path, server: Server
) -> None:
    run = Run(tmp_path / "run", server.uri)
    run.record(500)
    run.delivered(500)
    server.kill()
    assert run.record(2000) < 2.0
    wait_for(lambda: interruptions(run) > 0)
    server.start()
    said = run.end()
    assert said.count("Tracking is interrupted") == 1
    assert history(run) == twin(2500)
    assert status(run) == "FINISHED"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_server_that_dies_again_and_again_gets_each_point_once(
    tmp_path: Path, server: Server
) -> None:
    run = Run(tmp_path / "run", server.uri)
    for _ in range(12):
        run.record(3000)
        server.kill()
        assert run.record(2000) < 2.0
        server.start()
    run.end()
    assert history(run) == twin(60_000)
    assert status(run) == "FINISHED"
