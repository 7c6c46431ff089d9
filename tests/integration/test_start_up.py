"""What a process of its own imports before its first step, and the threads it makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.conftest import Command, said


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
        "+hooks.modules._target_=tests.tiny.hooks.ListModules",
        "+hooks.threads._target_=tests.tiny.hooks.CountThreads",
    )
    assert (done.returncode, said(done)) == (0, [])
    (line,) = [each for each in done.stdout.splitlines() if each.startswith('["modules"')]
    modules = set(json.loads(line))
    assert {"tensorflow", "keras", "runner.run"} <= modules
    # The follower's, and those of the tools beside the run.
    assert not modules & {"mlflow", "sqlalchemy", "alembic", "tensorboard", "safetensors"}
    assert not modules & {
        "runner.sync",
        "runner.inspect",
        "runner.tracking.mlflow_store",
    }
    assert fresh_command.statuses("tiny") == ["FINISHED"]  # It was tracked all the same.

    (line,) = [each for each in done.stdout.splitlines() if each.startswith("{")]
    threads = json.loads(line)
    program = "python"
    assert threads[program] - threads["Python"] == 7
    assert threads["tf_Compute"] >= 41
