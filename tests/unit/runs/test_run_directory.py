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

from runner.config.choices import Resume
from runner.errors import RunDirectoryError
from runner.runs import resumption
from runner.runs.resumption import ClaimedDirectory, ResumeCriteria, StartKind
from runner.runs.run_directory import RunDirectory, RunRecord, mark_killed_runs, runs
from runner.system.run_format import FORMAT
from runner.system.status import Status

ROOT = Path(__file__).resolve().parents[3]
RECORD = RunRecord("digits", "0123456789abcdef", Status.RUNNING, {"seed": 0, "train": {"steps": 5}})
OTHER = replace(RECORD, fingerprint="f" * 16, settings={"seed": 0, "train": {"steps": 9}})
FAILED, KILLED, FINISHED, PRUNED = (
    replace(RECORD, status=each)
    for each in (Status.FAILED, Status.KILLED, Status.FINISHED, Status.PRUNED)
)


def make_run(container: Path, name: str, record: RunRecord) -> Path:
    """Writes the record of a run that no process owns."""
    path = container / name
    path.mkdir(parents=True)
    RunDirectory(path).write(record)
    return path


def interrupted_run(container: Path, record: RunRecord, resume: Resume) -> RunDirectory | None:
    criteria = ResumeCriteria(container, record, resume)
    return resumption.interrupted_run(criteria)


def claim_run(container: Path, record: RunRecord, resume: Resume) -> ClaimedDirectory:
    return resumption.claim_run(ResumeCriteria(container, record, resume))


@pytest.fixture
def opened() -> Iterator[list[RunDirectory]]:
    """Directories to release when the test ends."""
    directories: list[RunDirectory] = []
    yield directories
    for each in directories:
        each.release()


def test_a_record_is_read_as_it_was_written_and_updated(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.read() is None
    with pytest.raises(FileNotFoundError, match=r"run\.json"):
        run.load_record()
    full = replace(RECORD, sources={"body": "/runs/tiny/001/best/model.ckpt-5"})
    run.write(full)
    run.update(status=Status.FINISHED, objective=0.25)
    expected = replace(full, status=Status.FINISHED, objective=0.25)
    assert run.read() == run.load_record() == expected


@pytest.mark.parametrize(
    "content",
    [
        "{",
        f'{{"format": {FORMAT}, "name": "x"}}',
        f'{{"format": {FORMAT}, "unknown": 1}}',
        "[1]",
        "7",
    ],
)
def test_a_record_that_another_has_written(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content, encoding="utf-8")
    with pytest.raises(RunDirectoryError, match=r"run\.json cannot be read"):
        RunDirectory(tmp_path).read()


def test_a_claimed_directory_has_one_owner(tmp_path: Path) -> None:
    first, second = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    first.claim()
    owner = f"process {os.getpid()} on {socket.gethostname()}"
    with pytest.raises(RunDirectoryError, match=f"is in use\n  cause: .*{owner}"):
        second.claim()
    (tmp_path / "run" / "owner.json").unlink()  # As before it has signed.
    with pytest.raises(RunDirectoryError, match="another process owns it: unknown"):
        second.claim()
    first.release()
    second.claim()
    second.release()


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


def test_runs_are_listed_newest_first_and_a_run_is_its_own(tmp_path: Path) -> None:
    for name in ("002", "010", "1000", "009"):
        path = make_run(tmp_path, name, replace(RECORD, name=name))
    (tmp_path / "003").mkdir()
    make_run(tmp_path, "notes", RECORD)
    assert [record.name for _, record in runs(tmp_path)] == ["1000", "010", "009", "002"]
    assert [(each.path, record.name) for each, record in runs(path)] == [(path, "009")]
    assert runs(tmp_path / "absent") == []


def trial(name: str) -> RunRecord:
    return replace(FAILED, trial=name)


TRIALS = [FAILED, trial("../sweeps/001:3"), trial("../sweeps/001:4")]


@pytest.mark.parametrize(
    ("kept", "record", "resume", "name"),
    [
        *(
            ([RECORD, each, OTHER, FINISHED, PRUNED], RECORD, resume, "002")
            for each in (RECORD, FAILED, KILLED)
            for resume in (Resume.auto, Resume.must)
        ),
        *(([each], RECORD, Resume.auto, None) for each in (FINISHED, PRUNED, OTHER)),
        ([RECORD], RECORD, Resume.never, None),
        ([], RECORD, Resume.auto, None),
        (TRIALS, trial("../sweeps/001:3"), Resume.must, "002"),
        (TRIALS, trial("../sweeps/002:3"), Resume.auto, None),
        # What `must` asks for is the sweep, not each of its trials.
        (TRIALS, trial("../sweeps/002:3"), Resume.must, None),
        (TRIALS, RECORD, Resume.auto, "003"),
    ],
)
def test_the_newest_interrupted_run_of_the_same_configuration_is_resumed(
    tmp_path: Path, kept: list[RunRecord], record: RunRecord, resume: Resume, name: str | None
) -> None:
    for number, each in enumerate(kept):
        make_run(tmp_path / "runs", f"{number + 1:03d}", each)
    before = sorted(tmp_path.rglob("*"))
    found = interrupted_run(tmp_path / "runs", record, resume)
    assert (found and found.path.name) == name
    assert sorted(tmp_path.rglob("*")) == before, "looking for a run changes nothing"


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (None, "holds no interrupted run of this configuration\n  cause: it holds no run at all"),
        (FINISHED, "001 is FINISHED after 0 steps\n"),
        (PRUNED, "001 is PRUNED after 0 steps\n"),
        (OTHER, r"001 is RUNNING after 0 steps and differs: train\.steps: 9 -> 5\n"),
        (replace(RECORD, fingerprint="f" * 16), "or the scaffolds in another order"),
    ],
)
def test_must_needs_an_interrupted_run_and_reports_what_differs(
    tmp_path: Path, kept: RunRecord | None, message: str
) -> None:
    if kept is not None:
        make_run(tmp_path, "001", kept)
    with pytest.raises(RunDirectoryError, match=message):
        interrupted_run(tmp_path, RECORD, Resume.must)


@pytest.mark.parametrize(
    ("record", "resume"), [(FINISHED, Resume.auto), (OTHER, Resume.auto), (RECORD, Resume.never)]
)
def test_a_run_of_its_own_is_never_overwritten(
    tmp_path: Path, record: RunRecord, resume: Resume
) -> None:
    path = make_run(tmp_path, "mine", record)
    with pytest.raises(RunDirectoryError, match="is itself a run, and not one to resume"):
        interrupted_run(path, RECORD, resume)
    assert RunDirectory(path).read() == record


def _warm(name: str, **scaffolds: str) -> RunRecord:
    settings = {"scaffolds": scaffolds, "restoration": {"verify": False}, "train": name}
    return RunRecord("e", name, Status.RUNNING, settings)


def test_a_changed_warm_start_makes_a_new_run_and_is_refused_in_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, "001", _warm("f1", head="b", body="a"))
    changed, reordered = _warm("f2", head="b", body="c"), _warm("f2", body="a", head="b")
    assert interrupted_run(tmp_path, changed, Resume.auto) is None
    for record, difference in (
        (changed, "differs: scaffolds.body: a -> c; train: f1 -> f2"),
        (replace(reordered, settings=_warm("f1", body="a", head="b").settings), "another order"),
    ):
        with pytest.raises(RunDirectoryError, match="is itself a run") as caught:
            interrupted_run(run, record, Resume.auto)
        assert difference in caught.value.problems[0].cause


def test_new_runs_are_numbered(tmp_path: Path, opened: list[RunDirectory]) -> None:
    for _ in range(2):
        opened.append(claim_run(tmp_path / "runs", RECORD, Resume.never).directory)
    (tmp_path / "runs" / "041").mkdir()
    opened.append(claim_run(tmp_path / "runs", RECORD, Resume.never).directory)
    assert [each.path.name for each in opened] == ["001", "002", "042"]
    assert all(each.read() == RECORD for each in opened)
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match=r"run_dir is .*file\n  cause: it cannot be"):
        claim_run(tmp_path / "file", RECORD, Resume.auto)


def test_a_resumed_run_is_running_again_and_has_one_owner(
    tmp_path: Path, opened: list[RunDirectory]
) -> None:
    former = replace(KILLED, objective=0.5)
    path = make_run(tmp_path, "001", former)
    claimed = claim_run(tmp_path, RECORD, Resume.auto)
    assert (claimed.start, claimed.former) == (StartKind.resumed, former)
    opened.append(claimed.directory)
    assert opened[0].path == path
    assert opened[0].read() == replace(RECORD, objective=0.5)
    with pytest.raises(RunDirectoryError, match="resume=never starts another run beside it"):
        claim_run(tmp_path, RECORD, Resume.auto)
    claimed = claim_run(tmp_path, RECORD, Resume.never)
    assert (claimed.start, claimed.former) == (StartKind.new, None)
    opened.append(claimed.directory)
    assert opened[1].path.name == "002"


def test_runs_that_were_killed_are_settled_once(tmp_path: Path) -> None:
    killed, finished = make_run(tmp_path, "001", RECORD), make_run(tmp_path, "002", FINISHED)
    living = RunDirectory(tmp_path / "003")
    living.claim()
    living.write(RECORD)
    assert [each.path for each in mark_killed_runs(tmp_path)] == [killed]
    assert mark_killed_runs(tmp_path) == []
    living.release()
    statuses = [record.status for _, record in runs(tmp_path)]
    assert statuses == [Status.RUNNING, Status.FINISHED, Status.KILLED]
    assert not (finished / "lock").exists()
