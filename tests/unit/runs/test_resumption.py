"""Which run `resume=extend` continues, and why it continues none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.config.choices import Resume
from runner.config.fingerprint import fingerprint
from runner.errors import RunDirectoryError
from runner.runs.resumption import ResumeCriteria, interrupted_run, skipped_run_notice
from runner.runs.run_directory import RunDirectory, RunRecord
from runner.system.status import Status


def settings(steps: int, **changes: Any) -> dict[str, Any]:
    rate = {"first": 0.1, "decay_steps": steps}
    optimizer = {"token": "secret", "learning_rate": rate, "slots": 7}
    plain = {"seed": 0, "scaffolds": {}, "train": {"steps": steps}, "optimizer": optimizer}
    return {**plain, **changes}


def record(given: dict[str, Any], status: Status = Status.FINISHED, trial: str = "") -> RunRecord:
    masked = {**given, "optimizer": {**given["optimizer"], "token": "***"}}
    return RunRecord("e", fingerprint(given), status, masked, trial=trial)


def make(container: Path, name: str, of: RunRecord, taken: int) -> Path:
    run = RunDirectory(container / name)
    run.checkpoints.mkdir(parents=True)
    run.write(of)
    if taken:
        (run.checkpoints / f"model.ckpt-{taken}.index").touch()
    return run.path


def criteria(container: Path, given: dict[str, Any], trial: str = "") -> ResumeCriteria:
    return ResumeCriteria(container, record(given, trial=trial), Resume.extend)


def extended(container: Path, given: dict[str, Any], trial: str = "") -> str | None:
    run = interrupted_run(criteria(container, given, trial))
    return run.path.name if run else None


SHORT, SAME, LONG = settings(10), settings(20), settings(30)
OTHER_SLOTS = {**SHORT, "optimizer": {**SHORT["optimizer"], "slots": 8}}
OTHER_TARGET = {**SHORT, "optimizer": {**SHORT["optimizer"], "_target_": "a"}}
OTHER_HOOKS = {**SAME, "hooks": {"stop": {"_target_": "b"}}, "train": {"steps": 20, "clip": 1}}


@pytest.mark.parametrize(
    ("kept", "name"),
    [
        ([(SHORT, "FINISHED", 10)], "001"),
        # Early stopping, or a limit of time, ended it.
        ([(SAME, "FINISHED", 10)], "001"),
        ([(SHORT, "FINISHED", 10), (settings(15), "FINISHED", 15)], "002"),
        # One that was started again by mistake, and one whose extension was interrupted.
        ([(SHORT, "FINISHED", 10), (SAME, "KILLED", 5)], "001"),
        ([(SAME, "RUNNING", 12), (SHORT, "FINISHED", 10)], "001"),
        ([(SAME, "FAILED", 0)], "001"),
        ([(SHORT, "KILLED", 5), (LONG, "FINISHED", 30)], "001"),
        # Fewer steps; another rate, other hooks and clipping; fewer differences come first.
        ([(LONG, "KILLED", 15)], "001"),
        ([(OTHER_SLOTS, "FINISHED", 10)], "001"),
        ([(OTHER_HOOKS, "KILLED", 12)], "001"),
        ([(SHORT, "FINISHED", 5), (OTHER_SLOTS, "FINISHED", 10)], "001"),
    ],
)
def test_the_run_that_came_furthest_is_extended(
    tmp_path: Path, kept: list[tuple[dict[str, Any], str, int]], name: str
) -> None:
    for number, (given, status, taken) in enumerate(kept, 1):
        make(tmp_path, f"{number:03d}", record(given, Status(status)), taken)
    assert extended(tmp_path, SAME) == name
    assert extended(tmp_path / name, SAME) == name


@pytest.mark.parametrize(
    ("given", "status", "taken", "message"),
    [
        (SHORT, "PRUNED", 10, "is PRUNED after 10 steps and differs"),
        (SAME, "FINISHED", 20, "001 is FINISHED after 20 steps\n"),
        (LONG, "KILLED", 20, r"is KILLED after 20 steps and differs: train\.steps: 30 -> 20"),
        (SHORT, "FINISHED", 0, "is FINISHED after 0 steps"),
        ({**SAME, "scaffolds": {"b": {}, "a": {}}}, "FINISHED", 10, "differs: .*scaffolds.b"),
        ({**SHORT, "seed": 3}, "FINISHED", 10, "differs: .*seed: 3 -> 0"),
        ({**SAME, "seed": 3}, "FINISHED", 20, "differs: .*seed: 3 -> 0"),
        (OTHER_TARGET, "FINISHED", 10, "_target_: a -> "),
    ],
)
def test_what_cannot_be_extended(
    tmp_path: Path, given: dict[str, Any], status: str, taken: int, message: str
) -> None:
    make(tmp_path, "001", record(given, Status(status)), taken)
    with pytest.raises(RunDirectoryError, match=message):
        extended(tmp_path, SAME)
    assert not any("resume=extend" in line for line in skipped_run_notice(criteria(tmp_path, SAME)))


def test_a_damaged_run_beside_it_stops_no_other(tmp_path: Path) -> None:
    for name, other in (("001", SAME), ("002", {**SAME, "seed": 3})):
        path = make(tmp_path, name, record(other, Status.KILLED), 5)
        (path / "checkpoints" / "checkpoint").touch()  # Empty, as a full disk leaves it.
    (line,) = skipped_run_notice(criteria(tmp_path, SAME))
    assert line == f"{tmp_path}/002 is unfinished and left alone: seed: 3 -> 0"
    assert extended(tmp_path, SAME) == "001"


def test_a_trial_extends_only_its_own_run(tmp_path: Path) -> None:
    make(tmp_path, "001", record(SHORT, trial="a"), 10)
    assert extended(tmp_path, SAME, "a") == "001"
    with pytest.raises(RunDirectoryError):
        extended(tmp_path, SAME, "b")
