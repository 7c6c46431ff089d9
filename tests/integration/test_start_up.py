"""A run takes its first step without what only later steps, other processes or modes need."""

from __future__ import annotations

import json

from tests.integration.conftest import Command, said


def test_nothing_is_imported_before_the_first_step_that_it_does_not_need(
    fresh_command: Command,
) -> None:
    done = fresh_command.run(
        "+experiment=tiny",
        "train.steps=2",
        "+hooks.modules._target_=tests.tiny.hooks.ListModules",
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
