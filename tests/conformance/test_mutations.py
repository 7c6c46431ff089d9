"""Damaged files of every format: no crash, no hang, no error but ours, no silent wrong value."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.conformance.goldens import MAKERS

ROOT = Path(__file__).resolve().parents[2]
EACH = 12


def test_mutated_checkpoints_are_refused_or_read_right(tmp_path: Path) -> None:
    # In a process of its own, so that a crash fails this test and not the whole run.
    command = [sys.executable, "-m", "tests.conformance.mutations", str(tmp_path), str(EACH), "0"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"after {lines[-1:]}: {done.stderr[-3000:]}"
    outcomes = Counter(line.partition(": ")[2] for line in lines)
    wrong = [line for line in lines if ": wrong" in line]
    assert not wrong
    assert outcomes["refused"] + outcomes["unharmed"] == EACH * len(MAKERS)
    assert outcomes["refused"] > outcomes["unharmed"], "most mutations do harm"
