"""A program's own cluster: which tasks a session waits for, and that it says so."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest
import tensorflow as tf

import runner
from runner.cluster.local import free_addresses
from runner.session import waiting
from tests.support.forked import ROOT, Forks
from tests.support.runs import wait_for

_Start: TypeAlias = Callable[[str], subprocess.Popen[str]]
_FILTERS = 'device_filters=["/job:ps", here]'


@pytest.fixture
def addresses() -> dict[str, list[str]]:
    return {job: free_addresses(1) for job in ("ps", "chief", "worker")}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program of the page on clusters."""
    page = (ROOT / "docs" / "how-to" / "own-cluster.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert _FILTERS in code
    path = tmp_path / "program.py"
    path.write_text(code)
    return path


@pytest.fixture
def start(forks: Forks, addresses: dict[str, list[str]], program: Path) -> Iterator[_Start]:
    """Starts the only task of a job."""
    tasks: list[subprocess.Popen[str]] = []

    def start(job: str) -> subprocess.Popen[str]:
        task = {"cluster": addresses, "task": {"type": job, "index": 0}}
        tasks.append(
            forks.start(
                [sys.executable, "-m", "tests.support.own_cluster", str(program)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=program.parent,
                env=os.environ | {"TF_CONFIG": json.dumps(task), "TF_CPP_MIN_LOG_LEVEL": "3"},
            )
        )
        return tasks[-1]

    yield start
    for task in tasks:
        task.kill()
        task.communicate()


def test_a_session_says_which_tasks_it_waits_for(
    start: _Start, addresses: dict[str, list[str]], program: Path
) -> None:
    program.write_text(program.read_text().replace(_FILTERS, ""))
    worker = start("worker")
    assert worker.stderr is not None
    line = next(line for line in worker.stderr if "waits for tasks" in line)
    silent = [f"/job:{job}/task:0 ({addresses[job][0]})" for job in ("chief", "ps")]
    assert f"do not answer: {', '.join(silent)}. " in line
    assert "device_filters=['/job:ps', '/job:worker/task:0']" in line
    start("ps")
    chief = start("chief")
    assert chief.communicate(timeout=60)[0] == "ended\n"


def test_device_filters_leave_other_tasks_out(start: _Start, tmp_path: Path) -> None:
    start("ps")
    for job in ("chief", "worker"):  # The worker begins after the chief has ended.
        output, errors = start(job).communicate(timeout=60)
        assert output == "ended\n"
        assert "do not answer" not in errors
    saved = tf.train.latest_checkpoint(str(tmp_path / "model"))
    assert tf.train.load_variable(saved, "weight") == pytest.approx(3)


def test_a_session_says_that_another_process_does_not_serve(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.05)
    (address,) = free_addresses(1)
    with waiting.waits_reported(f"grpc://{address}", None):
        wait_for(lambda: f"do not answer: the server at {address}. " in caplog.text, 20.0)


def test_a_worker_says_that_it_waits_for_the_chief(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.05)
    server = tf.distribute.Server.create_local_server()
    with tf.Graph().as_default(), ThreadPoolExecutor(1) as pool:
        weight = tf.compat.v1.get_variable("weight", initializer=1.0)
        ready = tf.compat.v1.report_uninitialized_variables([weight])
        manager = runner.SessionManager(ready_op=ready, recovery_wait_secs=1)
        waiter = pool.submit(manager.wait_for_session, server.target, max_wait_secs=60)
        wait_for(lambda: "waits for the chief, which has not made" in caplog.text, 20.0)
        with tf.compat.v1.Session(server.target) as chief:
            chief.run(weight.initializer)
            waiter.result(60).close()
