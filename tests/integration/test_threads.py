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
import pathlib, sys
from runner.config import SessionConfig, TrainConfig
from tests.tiny.runs import run

run(
    pathlib.Path(sys.argv[1]),
    session=SessionConfig(int(sys.argv[2]), int(sys.argv[3])),
    train=TrainConfig(steps=2),
    hooks={"count": {"_target_": "tests.tiny.hooks.CountThreads"}},
)
"""


@pytest.mark.skipif(not TASKS.is_dir(), reason="only Linux names the threads of a process")
def test_the_numbers_of_threads_are_as_configured(tmp_path: Path) -> None:
    few, more = _threads(tmp_path / "few", 3, 5), _threads(tmp_path / "more", 7, 8)
    # Those within one operation carry no name of their own; of the others there are several pools.
    assert more["python"] == few["python"] + 4
    assert more["tf_Compute"] >= few["tf_Compute"] + 3


def _threads(folder: Path, intra: int, inter: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(intra), str(inter)],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("{")]
    counts: dict[str, int] = json.loads(line)
    return counts
