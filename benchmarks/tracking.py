"""Measures the cost of tracking in the training loop, and the speed and memory of delivery."""

from __future__ import annotations

import itertools
import os
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric

from benchmarks.harness import Result, compare, options, report, shown
from runner.config.masking import Mask
from runner.config.schema import TrackingConfig
from runner.system.status import Status
from runner.tracking.follower_process import FollowerProcess
from runner.tracking.run_store import RunStore, Tracker
from runner.tracking.tracking_directory import TrackingDirectory

NO_STORE = "http://127.0.0.1:9"


def opened(folder: Path, uri: str, *, followed: bool = False, seconds: float = 0.0) -> Tracker:
    """A tracker whose journal is delivered by a separate process, or by none.

    Args:
      folder: of the journal.
      uri: of the store.
      followed: whether it is delivered.
      seconds: how long its end waits for that.
    """
    config = TrackingConfig(uri=uri, close_seconds=seconds)
    follower = FollowerProcess()
    if followed:
        follower.start(uri)
    store = RunStore(config, Mask(config.mask, {}), follower)
    return store.open(folder, "benchmark", "a run", tags={})


def a_metric(folder: Path, count: int) -> float:
    """Returns the median of 5,000 steps that log `count` metrics, in microseconds a metric."""
    tracker = opened(folder, NO_STORE)
    names = [f"train/metric_{index}" for index in range(count)]
    times = []
    for step in range(5000):
        values = dict.fromkeys(names, random.random())
        began = time.perf_counter()
        tracker.log_metrics(values, step)
        times.append(time.perf_counter() - began)
    tracker.close(Status.FINISHED)
    return statistics.median(times) / count * 1e6


def loop(folder: Path, repeats: int) -> list[Result]:
    """Logs one metric a step and several."""
    results: list[Result] = []
    for count in (1, 4, 16):
        values = [a_metric(folder / f"{count}-{number}", count) for number in range(repeats)]
        case = "a metric in the training loop"
        results += shown([Result(case, f"{count} a step", "us", tuple(values), limit=5.0)])
    return results


def delivery(folder: Path, uri: str, points: int, repeats: int) -> list[Result]:
    """Delivers a journal to a store, and the same metrics in MLflow's largest batches."""
    opened(folder / "empty", uri).close(Status.FINISHED)
    sync(folder / "empty")  # Makes the tables.
    numbers = itertools.count()

    def delivered() -> float:
        run = folder / f"run-{next(numbers)}"
        tracker = opened(run, uri)
        for step in range(points // 4):
            tracker.log_metrics({f"metric_{index}": random.random() for index in range(4)}, step)
        tracker.close(Status.FINISHED)
        return sync(run) - sync(folder / "empty")

    case = f"{points:,} metrics to {'SQLite' if uri.startswith('sqlite') else 'a server'}"
    bare = partial(bare_client, uri, points)
    return compare(case, "s", {"log_batch": bare, "runner sync": delivered}, {}, repeats)


def sync(folder: Path) -> float:
    """Delivers a run by hand and returns the seconds that takes."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "runner", "sync", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def bare_client(uri: str, points: int) -> float:
    """Returns the seconds for as many points in the largest batches that MLflow accepts."""
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment(f"bare {time.time_ns()}")
    run_id = client.create_run(experiment).info.run_id
    began = time.perf_counter()
    for start in range(0, points, 1000):
        now = time.time_ns() // 1_000_000
        steps = range(start // 4, (start + 1000) // 4)
        keys = [(f"metric_{index}", step) for step in steps for index in range(4)]
        batch = [Metric(key, random.random(), now, step) for key, step in keys]
        client.log_batch(run_id, metrics=batch)
    return time.perf_counter() - began


def quietly(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Starts a silent process in a new process session."""
    root = str(Path(__file__).resolve().parents[1])
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Gives the address of a server on an SQLite database; ends it with its children."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    command += ["--port", port, "--backend-store-uri", f"sqlite:///{folder}/server.db"]
    process = quietly(command, folder)
    try:
        deadline = time.monotonic() + 120.0
        while not answers(f"http://127.0.0.1:{port}/health"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no MLflow server on port {port} in 120 s")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(url: str) -> bool:
    """Whether a server is up."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def outage(folder: Path, points: int) -> list[Result]:
    """Memory of the run and of its follower, and disk, while a store is away."""
    tracker = opened(folder, NO_STORE, followed=True)
    names = [f"metric_{index}" for index in range(10)]
    tracker.log_metrics(dict.fromkeys(names, 0.0), 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for step in range(points // 10):
        tracker.log_metrics({name: random.random() for name in names}, step)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    files = TrackingDirectory(folder)
    size = sum(path.stat().st_size for path in files.journal.iterdir())
    while not files.log.exists() or "interrupted" not in files.log.read_text():
        time.sleep(0.1)
    time.sleep(3.0)  # A few attempts over the whole journal.
    command = ["ps", "--ppid", str(os.getpid()), "-o", "rss=,args="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    followers = [line for line in listed.splitlines() if "runner.tracking" in line]
    follower = max(int(line.split()[0]) for line in followers) / 1024
    tracker.close(Status.KILLED)
    case = f"{points:,} metrics while the store is away"
    return shown(
        [
            Result(case, "growth of the run", "MiB", (grown,)),
            Result(case, "follower", "MiB", (follower,)),
            Result(case, "a metric on disk", "bytes", (size / points,)),
        ]
    )


def signalled(folder: Path, repeats: int) -> list[Result]:
    """Seconds from SIGTERM to the exit of a training process, with everything delivered."""
    command = [sys.executable, "-m", "runner", "+experiment=digits_cnn", "train.steps=1000000"]
    taken = []
    # The first life makes the database, which takes MLflow seconds; the others resume it.
    for _ in range(repeats + 1):
        known = set(folder.glob("runs/*/*/checkpoints/*.index"))
        process = quietly(command, folder)
        while not set(folder.glob("runs/*/*/checkpoints/*.index")) - known:
            if process.poll() is not None:
                raise RuntimeError(f"the run ended with {process.returncode}")
            time.sleep(0.01)
        time.sleep(4.0 + random.random())  # By then the follower has imported MLflow.
        process.send_signal(signal.SIGTERM)
        began = time.perf_counter()
        code = process.wait()
        taken.append(time.perf_counter() - began)
        if code != 143:
            raise RuntimeError(f"the run ended with {code}")
    case = "SIGTERM to exit, saved and delivered"
    return shown([Result(case, "digits_cnn", "s", tuple(taken[1:]), limit=25.0)])


def main() -> int:
    """Prints the results; returns 1 when a limit is missed."""
    parser = options(__doc__, repeats=3)
    parser.add_argument("--points", type=int, default=50_000, help="delivered to each store")
    parser.add_argument("--outage", type=int, default=500_000, help="points while a store is away")
    args = parser.parse_args()
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = loop(folder / "loop", args.repeats)
        uri = f"sqlite:///{folder}/mlflow.db"
        results += delivery(folder / "sqlite", uri, args.points, args.repeats)
        with mlflow_server(folder) as uri:
            results += delivery(folder / "server", uri, args.points, args.repeats)
        results += outage(folder / "outage", args.outage)
        results += signalled(folder, args.repeats)
    return report(results, args.json)


if __name__ == "__main__":
    sys.exit(main())
