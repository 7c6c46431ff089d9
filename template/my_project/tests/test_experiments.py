"""The experiments compose, and train a few steps."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_second_experiment_starts_from_the_first(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "runner", "--config-dir", "conf", "+experiment=second"]
    command += ["train.steps=2", 'scaffolds.body.overrides=["train.steps=2"]']
    command += ["tracking=none", f"run_dir={tmp_path}/second"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "body: 4 variables" in done.stdout
