"""The example of the README where the package is installed and nothing else is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.packages import wheel_of_sdist
from tests.support.runs import wait_for


@pytest.mark.soak
def test_the_example_is_killed_and_resumed_in_an_empty_folder(tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    zipfile.ZipFile(wheel_of_sdist(tmp_path)).extractall(site)
    empty.mkdir()
    command = [sys.executable, "-m", "runner", "+experiment=lstm_cnn", "train.checkpoint_every=100"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    run = empty / "runs" / "lstm_cnn" / "001"

    with (tmp_path / "log").open("w") as log:
        killed = subprocess.Popen(command, cwd=empty, env=environment, stdout=log, stderr=log)
        wait_for(lambda: bool([*run.glob("**/model.ckpt-*.index")]), 240.0)
        killed.send_signal(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL

    done = subprocess.run(
        command, cwd=empty, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "restores this run's checkpoint, and reads no pretrained one" in done.stdout
    assert "step 600  validation" in done.stdout
    # MLflow 3.8 and older leaves an empty `mlruns`.
    left = sorted(path.name for path in empty.iterdir() if path.name != "mlruns")
    assert left == ["mlartifacts", "mlflow.db", "mlflow.db.lock", "runs"]
