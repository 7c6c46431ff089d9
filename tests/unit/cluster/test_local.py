"""The tasks of a local cluster are started, restarted and ended together; with stand-ins."""

from __future__ import annotations

import copy
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.conf import ConfigSourceInfo
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from runner.cluster.local import LocalCluster, public_addresses, task_command
from runner.config.schema import ClusterConfig
from runner.errors import ClusterError, ConfigError, InterruptedRunError
from tests.support.composing import composing
from tests.support.runs import wait_for

# What a task does is a line of Python, by its type.
PROGRAM = """
import json, os, signal, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
kind, index = task["type"], task["index"]
marker = os.path.join({folder!r}, kind)
def wait(): time.sleep(60)
def once(act):
    if not os.path.exists(marker):
        open(marker, "w").close()
        act()
{body}
"""


def start(
    folder: Path, body: str, cluster: ClusterConfig | None = None, **arguments: Any
) -> LocalCluster:
    script = folder / "task.py"
    script.write_text(PROGRAM.format(folder=str(folder), body=body))
    cluster = cluster or ClusterConfig(local=True, workers=2, ps=1, grace_secs=5)
    return LocalCluster(cluster, [sys.executable, str(script)], **arguments)


def pids(output: str) -> list[int]:
    return [int(number) for number in re.findall(r"process (\d+)", output)]


def alive(numbers: list[int]) -> list[int]:
    return [number for number in numbers if Path(f"/proc/{number}").exists()]


def test_the_end_of_the_chief_ends_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "print('line of', kind)\nif kind == 'ps': wait()\n"
    cluster = ClusterConfig(local=True, workers=3, ps=1, evaluator=True, grace_secs=0.5)
    start(tmp_path, body, cluster).run()
    output = capsys.readouterr().out
    assert {line for line in output.splitlines() if "line of" in line} == {
        "[ps 0] line of ps",
        "[chief] line of chief",
        "[worker 0] line of worker",
        "[worker 1] line of worker",
        "[evaluator] line of evaluator",
    }
    assert alive(pids(output)) == []


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888"])
def test_a_machine_with_a_public_address_is_not_exposed_unasked(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    private = ["127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.0.1", "169.254.0.1"]
    private += ["::1", "fe80::1%eth0", "fd00::1"]

    def interface(address: str) -> list[SimpleNamespace]:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [SimpleNamespace(family=family, address=address)]

    interfaces = {name: interface(name) for name in private}
    monkeypatch.setattr("psutil.net_if_addrs", lambda: interfaces)
    assert public_addresses() == []
    start(tmp_path, "").run()
    assert "servers listen on all interfaces, without a password" in capsys.readouterr().out
    interfaces["eth1"] = interface(address)
    with pytest.raises(ConfigError, match=f"would listen at {address}, which is public"):
        start(tmp_path, "").run()
    exposed = ClusterConfig(local=True, exposed=True, grace_secs=5)
    start(tmp_path, "", exposed).run()


def test_a_task_that_fails_is_started_again_so_often(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = (
        "from runner.cluster.local import report_begun\n"
        "if kind == 'chief':\n"
        "    print('given', sys.argv[1:])\n"
        "    once(lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        "    marker += ' begun'\n"
        "    report_begun(os.environ)\n"
        "    once(lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        "elif kind == 'ps': wait()\n"
    )
    launcher = start(
        tmp_path, body, ClusterConfig(local=True, workers=1, restarts=2, grace_secs=0.5)
    )
    launcher.run()
    output = capsys.readouterr().out
    assert "[chief] was killed by SIGKILL; it is started again, 1 times left" in output
    # It resumes only what it has begun.
    assert re.findall(r"given (.*)", output) == ["[]", "[]", "['resume=auto']"]


@pytest.mark.parametrize(("code", "restarts"), [(1, 0), (2, 3), (3, 3)])
def test_a_task_that_fails_for_good_ends_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int, restarts: int
) -> None:
    launcher = start(
        tmp_path,
        f"sys.exit({code}) if kind == 'worker' else wait()",
        ClusterConfig(local=True, workers=2, restarts=restarts, grace_secs=5),
    )
    with pytest.raises(ClusterError, match=f"worker 0 ended with {code}") as error:
        launcher.run()
    (problem,) = error.value.problems
    assert ("cluster.restarts is 0" in problem.cause) == (code == 1)
    # After a mistake in the command there is nothing to continue.
    assert ("the same command continues the run" in problem.remedy) == (code == 1)
    assert error.value.exit_code == code
    output = capsys.readouterr().out
    assert f"[cluster] worker 0 ended with {code}; the other tasks are ended" in output
    assert alive(pids(output)) == []


def test_a_cluster_whose_lines_are_not_read_ends_as_after_a_signal(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from runner.cluster.local import LocalCluster\n"
        "from runner.config.schema import ClusterConfig\n"
        "from runner.errors import InterruptedRunError\n"
        "from runner.system.output import GuardedOutput\n"
        "GuardedOutput()\n"
        "cluster = ClusterConfig(local=True, workers=1, grace_secs=5)\n"
        f"launcher = LocalCluster(cluster, [sys.executable, {str(tmp_path / 'task.py')!r}])\n"
        "try: launcher.run()\n"
        "except InterruptedRunError as error: print(error, file=sys.stderr)\n"
    )
    body = "while True:\n    print('a line', flush=True)\n    time.sleep(0.05)\n"
    start(tmp_path, body)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        found = pids("".join(process.stdout.readline() for _ in range(5)))
        process.stdout.close()
        errors = process.stderr.read()
    assert process.wait(timeout=10) == 0
    assert errors.startswith("ended by SIGTERM")
    assert "Traceback" not in errors
    assert alive(found) == []


@contextmanager
def interrupting(folder: Path, kinds: Sequence[str], times: int = 1) -> Iterator[None]:
    """Sends SIGINT to this process when tasks have left their markers; the block ends by it."""

    def interrupt() -> None:
        wait_for(lambda: all((folder / kind).exists() for kind in kinds))
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(InterruptedRunError, match="ended by SIGINT"):
        yield
    thread.join()


def test_a_signal_lets_the_chief_save_and_kills_what_does_not_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = (
        "def save(*_):\n"
        "    time.sleep(1)\n"
        "    print('saved')\n"
        "    sys.exit(143)\n"
        "if kind == 'chief': signal.signal(signal.SIGTERM, save)\n"
        "if kind == 'worker': signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(marker, 'w').close()\n"
        "wait()\n"
    )
    # The chief has as long as its session.
    cluster = ClusterConfig(local=True, workers=2, grace_secs=0.1)
    with interrupting(tmp_path, ["chief", "worker"]):
        start(tmp_path, body, cluster, save_seconds=5).run()
    output = capsys.readouterr().out
    assert "[chief] saved" in output
    assert "[worker 0] does not end, and is killed" in output
    assert alive(pids(output)) == []


def test_the_command_of_a_task_is_that_of_the_cluster(tmp_path: Path) -> None:
    with composing(tmp_path / "conf"):
        running: Any = copy.deepcopy(HydraConfig.get())
    OmegaConf.set_readonly(running, value=False)
    own = ConfigSourceInfo(str(tmp_path), "file", "main")
    named = ConfigSourceInfo("my/conf", "file", "command-line")
    running.runtime.config_sources = [own, named]
    running.overrides.task = ["+experiment=x", "name=two words"]
    running.overrides.hydra = [
        "hydra.searchpath=[more]",
        "hydra.mode=MULTIRUN",
        "+hydra.callbacks.mine={}",
    ]
    start = (sys.executable, "-m", "runner")
    rest = ("+experiment=x", "name=two words", "hydra.searchpath=[more]", "hydra.mode=RUN")
    assert task_command(running, tmp_path) == [*start, "--config-dir", "my/conf", *rest]
    # The tasks begin where this process has gone to.
    running.job.chdir = True
    assert task_command(running, tmp_path)[-2:] == ["hydra.job.chdir=false", "hydra.run.dir=."]
    running.job.chdir = False
    running.job.config_name = "mine"
    assert task_command(running, Path("elsewhere")) == [
        *(*start, "--config-path", str(tmp_path), "--config-dir", "my/conf"),
        *("--config-name", "mine", *rest),
    ]
    running.runtime.config_sources = [ConfigSourceInfo("package.conf", "pkg", "main")]
    assert "pkg://package.conf" in task_command(running, tmp_path)


def test_a_second_signal_leaves_no_process_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen(marker, 'w').close()\nwait()\n"
    launcher = start(tmp_path, body, ClusterConfig(local=True, workers=1, grace_secs=30))
    with interrupting(tmp_path, ["chief", "ps"], times=2):
        launcher.run()
    assert alive(pids(capsys.readouterr().out)) == []
