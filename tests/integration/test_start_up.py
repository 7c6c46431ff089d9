"""A new process imports only what its first step needs, and starts few threads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Command, said


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="only Linux names the threads of a process")
def test_a_process_imports_and_makes_no_more_than_its_first_step_needs(
    fresh_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    # NumPy's threads would be named like TensorFlow's, which are named like the program.
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    done = fresh_command.run(
        "+experiment=tiny",
        "train.steps=2",
        "session.intra_op_threads=7",
        "session.inter_op_threads=41",
        "+hooks.listing._target_=tests.samples.hooks.Listing",
    )
    assert (done.returncode, said(done)) == (0, [])
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("{")]
    found = json.loads(line)
    modules, threads = set(found["modules"]), found["threads"]
    assert {"tensorflow", "keras", "runner.lifecycle"} <= modules
    # The follower's, and those of the tools beside the run.
    assert not modules & {"mlflow", "sqlalchemy", "alembic", "tensorboard", "safetensors"}
    assert not modules & {"runner.commands.inspect_checkpoint", "runner.tracking.mlflow_store"}
    assert fresh_command.statuses("tiny") == ["FINISHED"]  # It was tracked all the same.
    assert threads["python"] - threads["Python"] == 7
    assert threads["tf_Compute"] >= 41
