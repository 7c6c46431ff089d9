"""A run's files, its record, and who may write them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.errors import RunDirectoryError
from runner.runs.run_directory import (
    RunDirectory,
    RunRecord,
    differences,
    interrupted_run,
    open_run,
    runs,
    settle_killed_runs,
)
from runner.system.status import Status

ROOT = Path(__file__).resolve().parents[2]
RECORD = RunRecord("digits", "0123456789abcdef", Status.RUNNING, {"seed": 0, "train": {"steps": 5}})
OTHER = replace(RECORD, fingerprint="f" * 16, settings={"seed": 0, "train": {"steps": 9}})


def make_run(container: Path, name: str, record: RunRecord) -> Path:
    """Writes the record of a run that no process owns."""
    path = container / name
    path.mkdir(parents=True)
    RunDirectory(path).write(record)
    return path


@pytest.fixture
def opened() -> Iterator[list[RunDirectory]]:
    """Directories to release when the test ends."""
    directories: list[RunDirectory] = []
    yield directories
    for each in directories:
        each.release()


def test_every_file_is_inside_the_directory(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    files = [run.checkpoints, run.best, run.config, run.overrides, run.plan, run.export]
    assert {each.parent for each in files} == {tmp_path}
    assert len(set(files)) == len(files)
    assert run.best_record.parent == run.best


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    full = replace(RECORD, objective=0.5, sources={"body": "/runs/tiny/001/best/model.ckpt-5"})
    run.write(full)
    assert run.read() == run.require() == full
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


def test_an_update_changes_only_what_it_names(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write(RECORD)
    run.update(status=Status.FINISHED, objective=0.25)
    assert run.read() == replace(RECORD, status=Status.FINISHED, objective=0.25)


def test_a_folder_without_a_record(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.read() is None
    with pytest.raises(FileNotFoundError, match=r"run\.json"):
        run.require()


def test_fields_that_a_former_version_wrote_are_passed_over(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write(RECORD)
    file = tmp_path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "tracking_run_id": "7"}))
    assert run.read() == RECORD


@pytest.mark.parametrize("content", ["{", '{"name": "x"}', '{"unknown": 1}', "[]", "[1]", "7"])
def test_a_record_that_another_has_written(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content, encoding="utf-8")
    with pytest.raises(RunDirectoryError, match=r"run\.json cannot be read"):
        RunDirectory(tmp_path).read()


def test_a_checkpoint_counts_once_tensorflow_can_find_it(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert not run.has_checkpoint()
    run.checkpoints.mkdir()
    (run.checkpoints / "model.ckpt-1.index").touch()
    assert not run.has_checkpoint()
    (run.checkpoints / "checkpoint").touch()
    assert run.has_checkpoint()


def test_a_claimed_directory_has_one_owner(tmp_path: Path) -> None:
    first, second = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    first.claim()
    owner = f"process {os.getpid()} on {socket.gethostname()}"
    with pytest.raises(RunDirectoryError, match=f"is in use\n  cause: .*{owner}"):
        second.claim()
    first.release()
    second.claim()
    second.release()


def test_an_owner_that_has_not_signed_yet(tmp_path: Path) -> None:
    first, second = RunDirectory(tmp_path), RunDirectory(tmp_path)
    first.claim()
    (tmp_path / "owner.json").unlink()
    with pytest.raises(RunDirectoryError, match="another process owns it: unknown"):
        second.claim()
    first.release()


CLAIM = """
import pathlib, sys
from runner.runs.run_directory import RunDirectory
run = RunDirectory(pathlib.Path(sys.argv[1]))
run.claim()
print("claimed", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_owns_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(tmp_path)],
        env={"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        run = RunDirectory(tmp_path)
        with pytest.raises(RunDirectoryError, match=f"process {process.pid} on "):
            run.claim()
        process.kill()
        process.wait()
        run.claim()
        assert json.loads((tmp_path / "owner.json").read_text())["pid"] == os.getpid()
        run.release()
    assert not (tmp_path / "owner.json").exists()


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    for name in ("002", "010", "1000", "009"):
        make_run(tmp_path, name, replace(RECORD, name=name))
    (tmp_path / "003").mkdir()
    make_run(tmp_path, "notes", RECORD)
    assert [record.name for _, record in runs(tmp_path)] == ["1000", "010", "009", "002"]


def test_a_run_directory_holds_itself(tmp_path: Path) -> None:
    path = make_run(tmp_path, "mine", RECORD)
    ((directory, record),) = runs(path)
    assert (directory.path, record) == (path, RECORD)


def test_nothing_holds_no_run(tmp_path: Path) -> None:
    assert runs(tmp_path / "absent") == []


@pytest.mark.parametrize("status", [Status.RUNNING, Status.FAILED, Status.KILLED])
def test_an_interrupted_run_of_the_same_configuration_is_resumed(
    tmp_path: Path, status: Status
) -> None:
    make_run(tmp_path, "001", RECORD)
    expected = make_run(tmp_path, "002", replace(RECORD, status=status))
    make_run(tmp_path, "003", OTHER)
    make_run(tmp_path, "004", replace(RECORD, status=Status.FINISHED))
    for resume in ("auto", "must"):
        found = interrupted_run(tmp_path, RECORD, resume)
        assert found is not None
        assert found.path == expected


def test_a_pruned_run_is_not_resumed(tmp_path: Path) -> None:
    make_run(tmp_path, "001", replace(RECORD, status=Status.PRUNED))
    assert interrupted_run(tmp_path, RECORD, "auto") is None
    with pytest.raises(RunDirectoryError, match="holds no interrupted run"):
        interrupted_run(tmp_path, RECORD, "must")


def test_a_trial_resumes_only_its_own_run(tmp_path: Path) -> None:
    alone, trial = replace(RECORD, trial=""), replace(RECORD, trial="../sweeps/001:3")
    make_run(tmp_path, "001", replace(alone, status=Status.FAILED))
    make_run(tmp_path, "002", replace(trial, status=Status.FAILED))
    make_run(tmp_path, "003", replace(RECORD, trial="../sweeps/001:4", status=Status.FAILED))
    found = interrupted_run(tmp_path, trial, "must")
    assert found is not None
    assert found.path.name == "002"
    other = replace(RECORD, trial="../sweeps/002:3")
    assert interrupted_run(tmp_path, other, "auto") is None
    # What `must` asks for is the sweep, not each of its trials.
    assert interrupted_run(tmp_path, other, "must") is None
    resumed = interrupted_run(tmp_path, alone, "auto")
    assert resumed is not None
    assert resumed.path.name == "003"


def test_never_resumes_nothing(tmp_path: Path) -> None:
    make_run(tmp_path, "001", RECORD)
    assert interrupted_run(tmp_path, RECORD, "never") is None


@pytest.mark.parametrize("record", [replace(RECORD, status=Status.FINISHED), OTHER])
def test_a_finished_run_or_another_configuration_is_not_resumed(
    tmp_path: Path, record: RunRecord
) -> None:
    make_run(tmp_path, "001", record)
    assert interrupted_run(tmp_path, RECORD, "auto") is None


def test_looking_for_a_run_creates_nothing(tmp_path: Path) -> None:
    assert interrupted_run(tmp_path / "runs", RECORD, "auto") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("finished", [True, False])
def test_must_needs_an_interrupted_run(tmp_path: Path, finished: bool) -> None:
    if finished:
        make_run(tmp_path, "001", replace(RECORD, status=Status.FINISHED))
    with pytest.raises(RunDirectoryError, match="holds no interrupted run"):
        interrupted_run(tmp_path, RECORD, "must")


def test_must_says_what_differs_from_the_interrupted_run(tmp_path: Path) -> None:
    make_run(tmp_path, "001", OTHER)
    expected = r"001 has another configuration\n  cause: train\.steps: 9 -> 5\n"
    with pytest.raises(RunDirectoryError, match=expected):
        interrupted_run(tmp_path, RECORD, "must")


def test_must_says_that_only_the_order_differs(tmp_path: Path) -> None:
    make_run(tmp_path, "001", replace(RECORD, fingerprint="f" * 16))
    with pytest.raises(RunDirectoryError, match="the same values in another order"):
        interrupted_run(tmp_path, RECORD, "must")


@pytest.mark.parametrize(
    ("record", "resume"),
    [(replace(RECORD, status=Status.FINISHED), "auto"), (OTHER, "auto"), (RECORD, "never")],
)
def test_a_run_of_its_own_is_never_overwritten(
    tmp_path: Path, record: RunRecord, resume: str
) -> None:
    path = make_run(tmp_path, "mine", record)
    with pytest.raises(RunDirectoryError, match="is a run of its own, and not one to resume"):
        interrupted_run(path, RECORD, resume)
    assert RunDirectory(path).read() == record


def _warm(name: str, **scaffolds: str) -> RunRecord:
    settings = {"scaffolds": scaffolds, "restoration": {"verify": False}, "train": name}
    return RunRecord("e", name, Status.RUNNING, settings)


def test_another_warm_start_is_refused_in_a_dedicated_folder(tmp_path: Path) -> None:
    make_run(tmp_path, "001", _warm("f1", body="a", head="b"))
    changed = _warm("f2", body="c", head="b")
    with pytest.raises(RunDirectoryError, match="the warm start has changed since") as caught:
        interrupted_run(tmp_path, changed, "auto", dedicated=True)
    assert caught.value.problems[0].cause == "scaffolds.body: a -> c"
    assert "resume=never" in caught.value.problems[0].remedy
    with pytest.raises(RunDirectoryError, match="the warm start has changed since"):
        interrupted_run(tmp_path / "001", changed, "auto")
    assert interrupted_run(tmp_path, changed, "auto") is None
    assert interrupted_run(tmp_path, changed, "never", dedicated=True) is None


def test_another_order_of_scaffolds_is_another_warm_start(tmp_path: Path) -> None:
    make_run(tmp_path, "001", _warm("f1", body="a", head="b"))
    with pytest.raises(RunDirectoryError, match="the scaffolds are in another order"):
        interrupted_run(tmp_path, _warm("f2", head="b", body="a"), "auto", dedicated=True)


def test_a_finished_run_or_the_same_warm_start_stands_in_nobodys_way(tmp_path: Path) -> None:
    make_run(tmp_path, "001", replace(_warm("f1", body="a"), status=Status.FINISHED))
    assert interrupted_run(tmp_path, _warm("f2", body="c"), "auto", dedicated=True) is None
    make_run(tmp_path, "002", _warm("f3", body="c"))
    assert interrupted_run(tmp_path, _warm("f2", body="c"), "auto", dedicated=True) is None


def test_new_runs_are_numbered(tmp_path: Path, opened: list[RunDirectory]) -> None:
    for _ in range(2):
        opened.append(open_run(tmp_path / "runs", RECORD, "never"))
    (tmp_path / "runs" / "041").mkdir()
    opened.append(open_run(tmp_path / "runs", RECORD, "never"))
    assert [each.path.name for each in opened] == ["001", "002", "042"]
    assert all(each.read() == RECORD for each in opened)


def test_a_resumed_run_is_running_again(tmp_path: Path, opened: list[RunDirectory]) -> None:
    path = make_run(tmp_path, "001", replace(RECORD, status=Status.KILLED, objective=0.5))
    opened.append(open_run(tmp_path, RECORD, "auto"))
    assert opened[0].path == path
    assert opened[0].read() == replace(RECORD, objective=0.5)


def test_a_run_that_is_still_running_is_not_resumed(
    tmp_path: Path, opened: list[RunDirectory]
) -> None:
    opened.append(open_run(tmp_path, RECORD, "auto"))
    with pytest.raises(RunDirectoryError, match="resume=never starts another run beside it"):
        open_run(tmp_path, RECORD, "auto")
    opened.append(open_run(tmp_path, RECORD, "never"))
    assert opened[1].path.name == "002"


def test_a_run_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match=r"run_dir is .*file\n  cause: it cannot be made"):
        open_run(tmp_path / "file", RECORD, "auto")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": {"b": 1, "c": [1]}}, {"a": {"b": 2, "c": [2]}}, ["a.b: 1 -> 2", "a.c: [1] -> [2]"]),
        ({"a": 1}, {"b": 2}, ["a: 1 -> (absent)", "b: (absent) -> 2"]),
        ({"a": {"b": 1}}, {"a": 3}, ["a: {'b': 1} -> 3"]),
    ],
)
def test_differences(old: object, new: object, expected: list[str]) -> None:
    assert differences(old, new) == expected


def test_a_run_is_settled_only_while_it_says_running_and_nobody_owns_it(tmp_path: Path) -> None:
    killed = RunDirectory(make_run(tmp_path, "001", RECORD))
    finished = RunDirectory(make_run(tmp_path, "002", replace(RECORD, status=Status.FINISHED)))
    living = RunDirectory(tmp_path / "003")
    living.claim()
    living.write(RECORD)
    settled = [RunDirectory(tmp_path / name).settle() for name in ("001", "002", "003")]
    living.release()
    assert settled == [RECORD, None, None]
    statuses = [each.require().status for each in (killed, finished, living)]
    assert statuses == ["KILLED", Status.FINISHED, Status.RUNNING]


def test_the_runs_that_were_killed_are_settled_once(tmp_path: Path) -> None:
    killed = make_run(tmp_path, "001", RECORD)
    finished = make_run(tmp_path, "002", replace(RECORD, status=Status.FINISHED))
    assert [each.path for each in settle_killed_runs(tmp_path)] == [killed]
    assert settle_killed_runs(tmp_path) == []
    assert not (finished / "lock").exists()
