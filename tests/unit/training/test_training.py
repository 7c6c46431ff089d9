"""One run from its first step to its last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.errors import ConfigError, InterruptedRunError, NonFiniteLossError
from tests.tiny.runs import Runs, disturbed, evaluations, short


def test_a_run_leaves_checkpoints_records_and_its_objective(runs: Runs) -> None:
    objective, lines = runs.run()
    assert runs.steps() == [10, 20]
    record = runs.record()
    assert (record.status, record.objective) == ("FINISHED", objective)
    best = json.loads(runs.directory().best_record.read_text())
    assert best["metrics"]["loss"] == objective
    assert runs.steps("best") == [best["step"]]
    assert evaluations(lines) == [10, 20]
    assert [line.split()[1] for line in lines if "steps/s" in line] == [
        "5/20",
        "10/20",
        "15/20",
        "20/20",
    ]
    assert runs.values()["global_step"] == 20
    for file in (runs.directory().config, runs.directory().overrides, runs.directory().plan):
        assert file.stat().st_size > 0


def test_the_last_step_is_evaluated_and_saved_once_whatever_the_rhythm(runs: Runs) -> None:
    _, lines = runs.run(train=short(steps=17, checkpoint_every=5, keep_checkpoints=3))
    assert evaluations(lines) == [10, 17]
    assert runs.steps() == [10, 15, 17]


def test_the_same_configuration_gives_the_same_result(runs: Runs) -> None:
    first, _ = runs.run()
    second, _ = runs.run()
    assert runs.count() == 2
    assert first == second
    for name, value in runs.values(1).items():
        assert np.array_equal(value, runs.values(2)[name]), name


def test_a_preempted_session_is_recovered_within_the_run(runs: Runs, tmp_path: Path) -> None:
    hooks = disturbed("AbortOnce", step=13, marker=str(tmp_path / "marker"))
    objective, lines = runs.run(hooks=hooks)
    assert (runs.record().status, runs.steps()) == ("FINISHED", [10, 20])
    assert evaluations(lines) == [10, 20]
    assert Runs(tmp_path / "whole").run(hooks=hooks)[0] == objective


def test_a_signal_ends_the_run_with_a_checkpoint_of_its_last_step(
    runs: Runs, tmp_path: Path
) -> None:
    hooks = disturbed("SignalOnce", step=13, marker=str(tmp_path / "marker"), number=15)
    with pytest.raises(InterruptedRunError, match="SIGTERM"):
        runs.run(hooks=hooks)
    assert (runs.record().status, runs.steps()) == ("KILLED", [10, 13])
    assert evaluations(runs.lines()) == [10]
    objective, lines = runs.run(hooks=hooks)
    assert lines[0] == f"tiny: resumes in {runs.directory().path}"
    assert objective == Runs(tmp_path / "whole").run(hooks=hooks)[0]


def test_a_hook_may_end_the_run_early(runs: Runs) -> None:
    _, lines = runs.run(hooks=disturbed("StopEarly", step=7))
    assert (runs.record().status, runs.steps()) == ("FINISHED", [7])
    assert evaluations(lines) == [7]


def _blobs(**arguments: int) -> dict[str, Any]:
    return {"_target_": "tests.tiny.experiment.Blobs", "batch_size": 8, "seed": 0, **arguments}


def test_a_loss_of_nan_stops_the_run(runs: Runs) -> None:
    data = _blobs(poison_after=13)
    with pytest.raises(NonFiniteLossError, match=r"the loss is nan at step 14\n") as caught:
        runs.run(data=data)
    (problem,) = caught.value.problems
    assert problem.cause.endswith(f"is {runs.directory().checkpoints / 'model.ckpt-10'}")
    assert problem.remedy.endswith("optimizer.learning_rate=0.005")
    assert (runs.record().status, runs.steps()) == ("FAILED", [10])
    # The same command goes on from the last checkpoint, to the same end.
    with pytest.raises(NonFiniteLossError):
        runs.run(data=data)
    assert runs.lines()[0] == f"tiny: resumes in {runs.directory().path}"
    assert runs.count() == 1


def test_training_data_that_end_are_not_the_end_of_training(runs: Runs) -> None:
    data = {"_target_": "tests.tiny.odd.Once"}
    with pytest.raises(ConfigError, match=r"data\.train\(\) ended before step 20"):
        runs.run(data=data)
    assert runs.record().status == "FAILED"


def test_training_data_whose_position_cannot_be_saved_are_told(runs: Runs) -> None:
    _, lines = runs.run(data={"_target_": "tests.tiny.odd.Generated"})
    (line,) = [each for each in lines if each.startswith("input:")]
    assert "position is not saved (GeneratorDataset does not support checkpointing.)" in line
    assert (runs.record().status, runs.steps()) == ("FINISHED", [10, 20])


@pytest.mark.parametrize("hook", ["FailOnce", "AbortOnce"])
def test_they_start_anew_where_the_configuration_says_so(
    runs: Runs, tmp_path: Path, hook: str
) -> None:
    changes: dict[str, Any] = {
        "data": {"_target_": "tests.tiny.odd.Generated"},
        "train": short(save_input=False, checkpoint_every=5, keep_checkpoints=9),
        "hooks": disturbed(hook, step=13, marker=str(tmp_path / "marker")),
    }
    if hook == "FailOnce":
        with pytest.raises(ValueError, match="the hook failed"):
            runs.run(**changes)
    runs.run(**changes)
    assert (runs.record().status, runs.steps()) == ("FINISHED", [5, 10, 15, 20])


def test_an_empty_validation_split_is_an_error(runs: Runs) -> None:
    with pytest.raises(ConfigError, match=r"data\.validation\(\) gives no example"):
        runs.run(data={"_target_": "tests.tiny.odd.NoValidation"})
    assert runs.record().status == "FAILED"
