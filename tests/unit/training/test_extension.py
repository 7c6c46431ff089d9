"""A run that has ended is extended to more steps, as if it had taken them at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.config.choices import Resume, StateClass
from runner.config.schema import ScaffoldConfig, VariablesConfig
from runner.errors import RunDirectoryError, UserCodeError
from runner.tracking.journal import Tags, read_lines, segments
from runner.tracking.tracking_directory import TrackingDirectory
from runner.training.experiment import OpenedRun
from tests.support.configs import PLAIN
from tests.support.kills import Killed
from tests.support.runs import Runs, disturbed, evaluations, short
from tests.unit.test_run import assert_same_result


def test_an_extended_run_is_what_all_steps_at_once_are(cheap: Runs, tmp_path: Path) -> None:
    """Also when the extension fails in between: then it is resumed like any other run."""
    marker = tmp_path / "marker"
    cheap.changes["hooks"] = disturbed("FailOnce", step=33, marker=str(marker))
    cheap.run()
    more = {"train": short(steps=40, checkpoint_every=10), "resume": Resume.extend}
    with pytest.raises(UserCodeError, match="the hook failed"):
        cheap.run(**more)
    path = cheap.directory().path
    assert cheap.lines()[:2] == [
        f"tiny: resumes in {path}, extended to step 40",
        "  restores this run's checkpoint, and reads no pretrained one",
    ]
    assert (cheap.record().status, cheap.record().settings["train"]["steps"]) == ("FAILED", 40)
    _, lines = cheap.run(train=short(steps=40, checkpoint_every=10))
    assert lines[0] == f"tiny: resumes in {path}"
    assert evaluations(lines) == [40]
    with pytest.raises(RunDirectoryError, match="001 is FINISHED after 40 steps"):
        cheap.run(**more)
    assert cheap.count() == 1

    once = Runs(tmp_path / "once", **cheap.changes)
    once.run(train=short(steps=40, checkpoint_every=10))
    assert_same_result(once, cheap)
    assert cheap.record().fingerprint == once.record().fingerprint
    best = [each.directory().best_record.read_text() for each in (cheap, once)]
    assert best[0] == best[1]


def _killed(run: OpenedRun) -> None:
    raise Killed


def test_an_extension_that_ends_as_it_begins_is_recorded_when_it_is_resumed(
    cheap: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheap.run()
    with monkeypatch.context() as patch:
        patch.setattr("runner.lifecycle.configured_hooks", _killed)
        with pytest.raises(Killed):
            cheap.run(train=short(steps=40, checkpoint_every=10), resume=Resume.extend)
    _, lines = cheap.run(train=short(steps=40, checkpoint_every=10))
    path = cheap.directory().path
    assert lines[0] == f"tiny: resumes in {path}"
    tags: dict[str, str] = {}
    for segment in segments(TrackingDirectory(path).journal):
        for record, _ in read_lines(segment.path):
            if isinstance(record, Tags):
                tags |= record.values
    assert tags["runner.extended"] == "from step 20: train.steps: 20 -> 40"


def _rate(steps: int, first: float = 0.1) -> dict[str, Any]:
    return {
        "_target_": "tensorflow.compat.v1.train.GradientDescentOptimizer",
        "learning_rate": {
            "_target_": "keras.optimizers.schedules.CosineDecay",
            "initial_learning_rate": first,
            "decay_steps": steps,
        },
    }


def test_a_schedule_that_follows_the_steps_is_named(cheap: Runs) -> None:
    _, lines = cheap.run(train=short(steps=10), optimizer=_rate(10))
    more: dict[str, Any] = {"train": short(steps=20), "optimizer": _rate(20)}
    _, lines = cheap.run(**more)
    path = cheap.directory().path
    hint = f"  {path} has taken 10 steps, and only train.steps differs: resume=extend continues it"
    assert (lines[0], lines[1]) == (f"tiny: runs in {cheap.directory(2).path}", hint)
    cheap.directory(2).update(status="FAILED", fingerprint="f" * 16)
    _, lines = cheap.run(**more, resume=Resume.extend)
    assert lines[0] == f"tiny: resumes in {path}, extended to step 20"


def _still(rate: float) -> dict[str, Any]:
    target = "tensorflow.compat.v1.train.GradientDescentOptimizer"
    return {"_target_": target, "learning_rate": rate}


CALLBACKS = {"stop": {"_target_": "keras.callbacks.TerminateOnNaN"}}


@pytest.mark.parametrize("before", [{}, CALLBACKS], ids=["without", "with"])
@pytest.mark.parametrize("after", [{}, CALLBACKS], ids=["without", "with"])
def test_an_extension_has_its_own_learning_rate_and_callbacks(
    before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    runs = Runs(tmp_path, **PLAIN)
    first = short(steps=8, evaluate_every=8, steps_per_epoch=4)
    runs.run(train=first, optimizer=_still(0.1), callbacks=before)
    former = runs.values()
    more = short(steps=10, evaluate_every=10, steps_per_epoch=4)
    changes = {"train": more, "optimizer": _still(0.0), "callbacks": after}
    runs.run(**changes, resume=Resume.extend)
    (extension,) = runs.record().extensions
    assert extension["step"] == 8
    assert "optimizer.learning_rate: 0.1 -> 0.0" in extension["changes"]
    values = runs.values()
    for name in ("body/kernel", "head/bias"):
        assert np.array_equal(values[name], former[name])  # The rate is 0.
    assert runs.steps() == [8, 10]


def test_what_an_extension_cannot_change_is_started_from_its_checkpoint(tmp_path: Path) -> None:
    runs = Runs(tmp_path, **PLAIN)
    runs.run(train=short(steps=5), optimizer=_still(0.1))
    momentum = {
        "_target_": "tensorflow.compat.v1.train.MomentumOptimizer",
        "learning_rate": 0.1,
        "momentum": 0.9,
    }
    changes = {"train": short(steps=8), "optimizer": momentum}
    with pytest.raises(RunDirectoryError, match=r"differs: .*optimizer\._target_"):
        runs.run(**changes, resume=Resume.extend)
    former = ScaffoldConfig(
        VariablesConfig(["*"]),
        checkpoint=str(runs.directory().path),
        state=[StateClass.weights, StateClass.batch_norm, StateClass.global_step],
    )
    _, lines = runs.run(**changes, scaffolds={"former": former})
    assert runs.steps(number=2) == [8]
    assert lines[1].startswith("  4 of 4 model variables")
