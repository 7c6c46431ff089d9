"""The tasks of a local cluster are started, restarted and ended together; with stand-ins."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from runner.cluster.launcher_watch import hand_over
from runner.cluster.local import LocalCluster, task_command
from runner.cluster_config import ClusterConfig
from runner.errors import ClusterError, InterruptedRunError

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
    folder: Path, body: str, cluster: ClusterConfig | None = None
) -> tuple[LocalCluster, ClusterConfig]:
    script = folder / "task.py"
    script.write_text(PROGRAM.format(folder=str(folder), body=body))
    cluster = cluster or ClusterConfig(local=True, workers=2, ps=1, grace_secs=5)
    return LocalCluster(cluster, [sys.executable, str(script)]), cluster


def pids(output: str) -> list[int]:
    return [int(each) for each in re.findall(r"process (\d+)", output)]


def alive(found: list[int]) -> list[int]:
    return [each for each in found if Path(f"/proc/{each}").exists()]


def test_the_chief_ends_it_and_its_objective_is_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = (
        "print('line of', kind)\n"
        "if kind == 'chief': open(os.environ['RUNNER_OBJECTIVE_FILE'], 'w').write('0.25')\n"
        "elif kind == 'ps': wait()\n"
    )
    cluster = ClusterConfig(local=True, workers=3, ps=1, evaluator=True, grace_secs=0.5)
    launcher, _ = start(tmp_path, body, cluster)
    assert launcher.run() == 0.25
    output = capsys.readouterr().out
    assert {line for line in output.splitlines() if "line of" in line} == {
        "[ps 0] line of ps",
        "[chief] line of chief",
        "[worker 0] line of worker",
        "[worker 1] line of worker",
        "[evaluator] line of evaluator",
    }
    assert len(pids(output)) == 5
    assert alive(pids(output)) == []


def test_a_task_that_fails_is_started_again_so_often(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = (
        "if kind == 'chief':\n"
        "    print(sys.argv[1:])\n"
        "    once(lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        "elif kind == 'ps': wait()\n"
    )
    launcher, _ = start(
        tmp_path, body, ClusterConfig(local=True, workers=1, restarts=1, grace_secs=0.5)
    )
    assert launcher.run() is None
    output = capsys.readouterr().out
    assert "[chief] was killed by SIGKILL; it is started again, 0 times left" in output
    assert "[chief] ['resume=auto']" in output


@pytest.mark.parametrize(("code", "restarts"), [(1, 0), (2, 3), (3, 3)])
def test_a_task_that_fails_for_good_ends_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int, restarts: int
) -> None:
    launcher, _ = start(
        tmp_path,
        f"sys.exit({code}) if kind == 'worker' else wait()",
        ClusterConfig(local=True, workers=2, restarts=restarts, grace_secs=5),
    )
    with pytest.raises(ClusterError, match=f"worker 0 ended with {code}") as error:
        launcher.run()
    assert error.value.exit_code == code
    assert alive(pids(capsys.readouterr().out)) == []


def test_a_signal_ends_all_and_what_does_not_end_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = (
        "if kind == 'worker': signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(marker, 'w').close()\n"
        "wait()\n"
    )
    launcher, _ = start(tmp_path, body, ClusterConfig(local=True, workers=2, grace_secs=0.5))

    def interrupt() -> None:
        while not (tmp_path / "worker").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(InterruptedRunError, match="ended by SIGINT"):
        launcher.run()
    output = capsys.readouterr().out
    assert "[worker 0] does not end, and is killed" in output
    assert alive(pids(output)) == []


def test_the_command_of_a_task_is_that_of_the_cluster() -> None:
    command = task_command(["my/conf"], ["+experiment=x", "name=two words"])
    assert command == [
        *(sys.executable, "-m", "runner", "--config-dir", "my/conf"),
        *("+experiment=x", "name=two words"),
    ]


def test_an_objective_is_handed_over_where_one_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "objective"
    hand_over(0.1, {})
    hand_over(None, {"RUNNER_OBJECTIVE_FILE": str(file)})
    assert not file.exists()
    hand_over(0.1, {"RUNNER_OBJECTIVE_FILE": str(file)})
    assert float(file.read_text()) == 0.1
