"""A second run in a process is the same run in a process of its own, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import hashlib, sys, runner
for folder in sys.argv[1:]:
    settings = {"train.steps": 6, "train.evaluate_every": 3, "tracking.uri": None, "seed": 3}
    result = runner.run("digits_cnn", {**settings, "run_dir": folder})
    values = b"".join(array.tobytes() for array in result.model("latest").get_weights())
    print("digest", hashlib.sha256(values).hexdigest(), result.metrics.to_json())
"""


def digests(folder: Path, *names: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line for line in done.stdout.splitlines() if line.startswith("digest")]


@pytest.mark.soak
def test_the_second_run_of_a_process_is_that_of_another_process(tmp_path: Path) -> None:
    (alone,) = digests(tmp_path, "alone")
    assert digests(tmp_path, "first", "second") == [alone, alone]
