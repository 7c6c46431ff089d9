"""Damaged files of every format: no crash, no hang, no other error, no silent wrong value."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.conformance.goldens import MAKERS
from tests.tiny.forked import ROOT, Forks

EACH = 8


def test_mutated_checkpoints_are_refused_or_read_right(tmp_path: Path, forks: Forks) -> None:
    # In a process of its own, so that a crash fails this test and not the whole run.
    process = forks.start(
        [sys.executable, "-m", "tests.conformance.mutations", str(tmp_path), str(EACH), "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, errors = process.communicate(timeout=240)
    lines = output.splitlines()
    assert process.returncode == 0, f"after {lines[-1:]}: {errors[-3000:]}"
    outcomes = Counter(line.partition(": ")[2] for line in lines)
    wrong = [line for line in lines if ": wrong" in line]
    assert not wrong
    assert outcomes["refused"] + outcomes["unharmed"] == EACH * len(MAKERS)
    assert outcomes["refused"] > outcomes["unharmed"], "most mutations do harm"
