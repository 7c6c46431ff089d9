"""What tracking costs the training loop, and how fast and in how much memory it delivers."""

from __future__ import annotations

import argparse
import logging
import os
import random
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric

from runner.config.masking import Mask
from runner.config.schema import TrackingConfig
from runner.system.status import Status
from runner.tracking.follower_process import FollowerProcess
from runner.tracking.journal_store import JournalStore
from runner.tracking.tracker import Tracker
from runner.tracking.tracking_directory import TrackingDirectory

REPEATS = 5


def main() -> None:
    """Prints one line a figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=50_000, help="delivered to each store")
    parser.add_argument("--outage", type=int, default=500_000, help="points while a store is away")
    parser.add_argument(
        "--only", choices=("loop", "sqlite", "server", "outage", "signal"), help="one part of it"
    )
    options = parser.parse_args()
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    parts: dict[str, Callable[[Path], None]] = {
        "loop": loop,
        "sqlite": lambda folder: delivery(
            folder, "sqlite", f"sqlite:///{folder}/mlflow.db", options.points
        ),
        "server": lambda folder: server(folder, options.points),
        "outage": lambda folder: outage(folder, options.outage),
        "signal": signalled,
    }
    for name, part in parts.items():
        if options.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                part(Path(folder))


def opened(folder: Path, uri: str, *, followed: bool = False) -> Tracker:
    """A tracker whose journal is followed by nobody, or by a process of its own."""
    config = TrackingConfig(uri=uri, close_seconds=0.0)
    follower = FollowerProcess()
    if followed:
        follower.start(uri)
    return JournalStore(config, Mask(config.mask, {}), follower).open(folder, "bench", "one", {})


def loop(folder: Path) -> None:
    """Microseconds a metric in the training loop."""
    for count in (1, 4, 16):
        names = [f"train/metric_{index}" for index in range(count)]
        medians, worst = [], 0.0
        for repeat in range(REPEATS):
            tracker = opened(folder / f"{count}-{repeat}", "http://127.0.0.1:9")
            steps = [dict.fromkeys(names, random.random()) for _ in range(5000)]
            times = []
            for step, values in enumerate(steps):
                began = time.perf_counter()
                tracker.log_metrics(values, step)
                times.append(time.perf_counter() - began)
            medians.append(statistics.median(times) / count * 1e6)
            worst = max(worst, *times)
            quietly(tracker)
        print(
            f"loop: {count} metrics a step: {statistics.median(medians):.2f} us a metric"
            f" (limit 5; median of {REPEATS} medians of 5,000 steps; longest {worst * 1e3:.1f} ms)"
        )


def delivery(folder: Path, name: str, uri: str, points: int) -> None:
    """Points a second that a follower delivers from a journal to a new run."""
    warm_up = opened(folder / "warm-up", uri)
    quietly(warm_up)
    sync(folder / "warm-up")  # Creates the tables.
    tracker = opened(folder / "run", uri)
    for step in range(points // 4):
        tracker.log_metrics({f"metric_{index}": random.random() for index in range(4)}, step)
    quietly(tracker)
    empty = sync(folder / "warm-up")
    took = sync(folder / "run") - empty
    bare = bare_client(uri, points)
    print(
        f"{name}: {points / took:,.0f} points a second ({points:,} in {took:.1f} s, besides"
        f" {empty:.1f} s to start), {took / bare:.2f} times MlflowClient.log_batch alone"
    )


def bare_client(uri: str, points: int) -> float:
    """Seconds for as many points in the largest batches that MLflow accepts, and nothing else."""
    client = MlflowClient(tracking_uri=uri)
    run_id = client.create_run(client.create_experiment("bare")).info.run_id
    began = time.perf_counter()
    for start in range(0, points, 1000):
        steps = range(start // 4, (start + 1000) // 4)
        batch = [
            Metric(f"metric_{index}", random.random(), time.time_ns() // 1_000_000, step)
            for step in steps
            for index in range(4)
        ]
        client.log_batch(run_id, metrics=batch)
    return time.perf_counter() - began


def server(folder: Path, points: int) -> None:
    """The same through an MLflow server of this machine."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with mlflow_server(folder, port):
        delivery(folder, "server", f"http://127.0.0.1:{port}", points)


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[None]:
    """A server on an SQLite database, ended with its children."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    command += ["--port", str(port), "--backend-store-uri", f"sqlite:///{folder}/server.db"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120.0
        while not answers(f"http://127.0.0.1:{port}/health"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no MLflow server on port {port} in 120 s")
            time.sleep(0.2)
        yield
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


def outage(folder: Path, points: int) -> None:
    """Memory of the run and of its follower, and disk, while a store is away."""
    tracker = opened(folder / "run", "http://127.0.0.1:9", followed=True)
    values = {f"metric_{index}": 0.0 for index in range(10)}
    tracker.log_metrics(values, 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    for step in range(points // 10):
        for name in values:
            values[name] = random.random()
        tracker.log_metrics(values, step)
    took = time.perf_counter() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    files = TrackingDirectory(folder / "run")
    size = sum(path.stat().st_size for path in files.journal.iterdir())
    while not files.log.exists() or "interrupted" not in files.log.read_text():
        time.sleep(0.1)
    time.sleep(3.0)  # A few attempts over the whole journal.
    follower = follower_memory()
    quietly(tracker)
    print(
        f"outage: {points:,} points: the run's memory grew by {grown:.1f} MB, its follower has"
        f" {follower:.0f} MB, the journal {size / 2**20:.0f} MB, {size / points:.0f} bytes a point;"
        f" {took / points * 1e6:.2f} us a point"
    )


def signalled(folder: Path) -> None:
    """Seconds from SIGTERM to the exit of a training process, with everything delivered."""
    command = [sys.executable, "-m", "runner", "+experiment=digits_cnn", "train.steps=1000000"]
    root = str(Path(__file__).resolve().parents[1])
    taken = []
    # The first life makes the database, which takes MLflow seconds; the others resume it.
    for repeat in range(REPEATS + 1):
        known = set(folder.glob("runs/*/*/checkpoints/*.index"))
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": root},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not set(folder.glob("runs/*/*/checkpoints/*.index")) - known:
            if process.poll() is not None:
                raise RuntimeError(f"the run ended with {process.returncode}")
            time.sleep(0.01)
        time.sleep(4.0 + random.random())  # By then the follower has imported MLflow.
        process.send_signal(signal.SIGTERM)
        began = time.perf_counter()
        code = process.wait()
        if repeat > 0:
            taken.append(time.perf_counter() - began)
        if code != 143:
            raise RuntimeError(f"the run ended with {code}")
    print(
        f"signal: {statistics.median(taken):.2f} s from SIGTERM to exit, saved and delivered"
        f" (median of {REPEATS}; longest {max(taken):.2f} s; limit session.grace_seconds=25)"
    )


def follower_memory() -> float:
    """Resident MB of the child that follows."""
    listed = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "rss=,args="],
        capture_output=True,
        text=True,
        check=True,
    )
    return max(int(line.split()[0]) / 1024 for line in listed.stdout.splitlines() if "sync" in line)


def quietly(tracker: Tracker) -> None:
    """Ends a run without the warning that it is not delivered."""
    logging.disable(logging.WARNING)
    tracker.close(Status.FINISHED)
    logging.disable(logging.NOTSET)


def sync(folder: Path) -> float:
    """Delivers a run by hand and returns the seconds that took."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "runner.sync", str(folder)], check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    if shutil.which("ps") is None:
        sys.exit("benchmarks/tracking.py needs the command ps")
    main()
