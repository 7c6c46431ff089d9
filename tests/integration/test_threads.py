"""The session's numbers of threads are those that TensorFlow makes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TASKS = Path("/proc/self/task")
# TensorFlow makes its pools once in a process, by the first session; hence one of its own.
PROGRAM = """
import json, pathlib, sys
from runner.config.schema import SessionConfig, TrainConfig
from tests.tiny.hooks import threads
from tests.tiny.runs import run

print(json.dumps(threads()))
run(
    pathlib.Path(sys.argv[1]),
    session=SessionConfig(intra_op_threads=7, inter_op_threads=41),
    train=TrainConfig(steps=2),
    hooks={"count": {"_target_": "tests.tiny.hooks.CountThreads"}},
)
"""


@pytest.mark.skipif(not TASKS.is_dir(), reason="only Linux names the threads of a process")
def test_the_numbers_of_threads_are_as_configured(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, within = (json.loads(each) for each in done.stdout.splitlines() if each[:1] == "{")
    # Those within one operation are named like the program, as are those of Python.
    program = Path(sys.executable).name
    pools = [each[program] - each["Python"] for each in (before, within)]
    assert pools[1] - pools[0] == 7
    assert within["tf_Compute"] >= 41
