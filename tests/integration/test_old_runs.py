"""Runs of earlier versions are resumed, evaluated, delivered and started from.

They are in the archives of `tests/data/old_runs`, one for a version, which `make.py` there makes.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.data.old_runs.unpack import FOLDER, unpack_archive
from tests.tiny.forked import Forks, environment

from .cases import tensors
from .conftest import Command, finish, summary

Unpack: TypeAlias = Callable[..., "OldRuns"]


@dataclass
class OldRuns(Command):
    """A folder with what an earlier version has left, and the commands that left it, by name."""

    commands: dict[str, list[str]] = field(default_factory=dict)

    def again(self, name: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Runs a command as before; it must succeed."""
        # Of two `--config-dir`, the last counts.
        done = self.run("--config-dir", "conf", *self.commands[name], *more)
        assert done.returncode == 0, done.stderr
        return done

    def path(self, run: str) -> Path:
        """Returns the directory of a run such as `points/001`."""
        return self.directory(run).path

    def read(self, file: str) -> Any:
        """Returns what is in a JSON file of a run."""
        return json.loads(self.path(file).read_text())

    def query(self, database: str, query: str) -> list[tuple[Any, ...]]:
        """Queries a database without any code that may change."""
        with closing(sqlite3.connect(self.folder / database)) as connection:
            return connection.execute(query).fetchall()

    def ids(self, experiment: str) -> dict[str, str]:
        """Returns the name of each run of an experiment in MLflow -> its id."""
        runs = [(run.info.run_name, run.info.run_id) for run in self.tracked(experiment)]
        assert len(runs) == len(dict(runs)), "two runs have one name"
        return dict(runs)

    def points(self, run_id: str, *groups: str) -> list[tuple[str, int, float]]:
        """Returns all metric values of a run in MLflow, each as often as it is there."""
        query = f"SELECT key, step, value FROM metrics WHERE run_uuid = '{run_id}'"
        return sorted(row for row in self.query("mlflow.db", query) if row[0].startswith(groups))

    def kept(self, run: str) -> list[Any]:
        """Returns what a finished run keeps, bit for bit, and what MLflow has of its metrics."""
        assert self.record(run).status == "FINISHED"
        run_id = self.ids(run[:-4])[run.replace("/", " ")]
        return [
            self.record(run).objective,
            *(self.read(f"{run}/{file}") for file in ("best/best.json", "early_stopping.json")),
            *(tensors(self.path(f"{run}/{folder}")) for folder in ("checkpoints", "best")),
            self.points(run_id, "train/", "validation/"),
        ]


@pytest.fixture(params=sorted(FOLDER.glob("*.tar.xz")), ids=lambda path: path.name[:-7])
def unpack(request: pytest.FixtureRequest, tmp_path: Path, forks: Forks) -> Unpack:
    """Unpacks what a version has left, as if in its place, or as `moved` to another."""

    def unpacked(*, moved: bool = False) -> OldRuns:
        folder = unpack_archive(request.param, tmp_path / "folder", moved=moved)
        return OldRuns(folder, forks, commands=json.loads((folder / "commands.json").read_text()))

    return unpacked


# The grid below resumes interrupted runs too.
@pytest.mark.soak
@pytest.mark.parametrize(("name", "moved"), [("killed", False), ("terminated", True)])
def test_an_interrupted_run_ends_as_if_it_had_not_been(
    unpack: Unpack, name: str, moved: bool
) -> None:
    old = unpack(moved=moved)
    before = old.ids(name)
    assert old.statuses(name) == ["KILLED"]
    assert old.steps(f"{name}/001") == ([4] if name == "killed" else [4, 6])
    done = old.again(name, "resume=must")
    assert f"{name}: resumes in runs/{name}/001" in done.stdout
    assert old.kept(f"{name}/001") == old.kept("points/001")
    assert (old.ids(name), old.statuses(name)) == (before, ["FINISHED"])
    (run,) = old.tracked(name)
    assert "runner.metrics_recorded_differently" not in run.data.tags


def test_a_finished_run_is_evaluated(unpack: Unpack) -> None:
    old = unpack()
    (before,) = old.tracked("points")
    evaluated = old.points(before.info.run_id, "test/")
    assert len(evaluated) == 1
    done = old.again("points", "mode=evaluate")
    assert f"runs/points/001/best/model.ckpt-8: test  loss {evaluated[0][2]:.4g}" in done.stdout
    assert old.points(before.info.run_id, "test/") == evaluated, "recorded before, and unchanged"
    done = old.again("points", "mode=evaluate", "evaluate.which=latest")
    (after,) = old.tracked("points")
    known, (_, step, value) = old.points(after.info.run_id, "test/")
    assert ([known], step) == (evaluated, 12)
    assert f"checkpoints/model.ckpt-12: test  loss {value:.4g}" in done.stdout
    assert (after.info.status, after.info.end_time) == ("FINISHED", before.info.end_time)


@pytest.mark.soak
def test_a_finished_run_is_exported(unpack: Unpack) -> None:
    old = unpack()
    done = old.again("points", "mode=export")
    assert "model:   models:/" in done.stdout
    exported = tensors(old.path("points/001/export/variables/variables"))
    best = tensors(old.path("points/001/best"))
    assert {"body/kernel", "head/kernel"} <= exported.keys()
    assert exported == {name: best[name] for name in exported}
    assert old.read("points/001/export/provenance.json") == old.read("points/001/provenance.json")


@pytest.mark.soak
def test_a_finished_run_is_a_source(unpack: Unpack) -> None:
    old = unpack()
    done = old.again("warm")
    assert [line for line in done.stdout.splitlines() if ": runs in" in line] == [
        "warm_points: runs in runs/warm_points/002"
    ]
    assert f"2 variables (10 values) from {old.path('points/001')}/best/model.ckpt-8" in done.stdout
    assert old.kept("warm_points/002") == old.kept("warm_points/001")
    kept = [old.read(f"warm_points/{number}/provenance.json") for number in ("001", "002")]
    assert kept[0]["sources"] == kept[1]["sources"]
    assert kept[1]["sources"]["body"][0]["provenance"] == old.read("points/001/provenance.json")


@pytest.mark.parametrize(
    "moved", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["in_place", "moved"]
)
def test_what_was_not_delivered_is_delivered_once(
    unpack: Unpack, forks: Forks, moved: bool
) -> None:
    old = unpack(moved=moved)
    before = old.ids("undelivered")
    (run_id,) = before.values()
    assert old.statuses("undelivered") == ["RUNNING"]
    assert {step for _, step, _ in old.points(run_id, "train/")} == {2, 4, 6}
    command = [sys.executable, "-m", "runner.sync", "runs/undelivered/001"]
    command += ["--uri", "sqlite:///mlflow.db"] if moved else []
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    for _ in range(2):
        done = finish(forks.start(command, cwd=old.folder, env=environment(), **streams))
        assert (done.returncode, done.stdout) == (0, "")
        assert (old.ids("undelivered"), old.statuses("undelivered")) == (before, ["FINISHED"])
        assert old.kept("undelivered/001") == old.kept("points/001")
    artifacts = old.client().list_artifacts(run_id, "checkpoints")
    assert "checkpoints/model.ckpt-12.index" in [artifact.path for artifact in artifacts]


def assert_one_run_each(old: OldRuns, before: dict[str, str], trials: int, failed: int) -> None:
    """Checks that MLflow has one run for each trial, those it had before and their parent."""
    name = next(iter(before)).split()[0]
    after = old.ids(name)
    assert sorted(after) == [f"{name} {n + 1:03d}" for n in range(trials)] + [f"{name} sweep"]
    assert before.items() <= after.items()
    parent, children = old.sweep(name)
    counts = [parent.data.tags[f"runner.sweep.{each}"] for each in ("trials", "failed")]
    assert (parent.info.status, counts) == ("FINISHED", [str(trials), str(failed)])
    assert [child.info.status for child in children.values()].count("FAILED") == failed


def begun(name: str, done: subprocess.CompletedProcess[str]) -> list[str]:
    """Returns the lines with which the trials of a sweep begin."""
    return sorted(line for line in done.stdout.splitlines() if line.startswith(f"{name}: "))


def test_a_grid_is_resumed(unpack: Unpack) -> None:
    old = unpack()
    before = old.ids("grid")
    assert list(before) == ["grid sweep", "grid 001", "grid 002", "grid 003"]
    finished = shutil.copytree(old.path("grid/001"), old.folder / "finished")
    done = old.again("grid", "resume=must", "sweep.figures=false")
    assert "1 of 4 trials have finished before" in done.stdout
    assert begun("grid", done) == [
        "grid: resumes in runs/grid/002",
        "grid: resumes in runs/grid/003",
        "grid: runs in runs/grid/004",
    ]
    assert {cells[0]: cells[3:] for cells in summary(done)} == {
        str(number): ["FINISHED", f"grid/{number + 1:03d}"] for number in range(4)
    }
    assert_one_run_each(old, before, trials=4, failed=0)
    assert old.kept("grid/003") == old.kept("points/001")
    for file in filter(Path.is_file, finished.rglob("*")):
        now = old.path("grid/001") / file.relative_to(finished)
        assert now.read_bytes() == file.read_bytes(), now


@pytest.mark.soak
def test_a_search_is_resumed(unpack: Unpack) -> None:
    old = unpack(moved=True)
    before = old.ids("search")
    query = "SELECT number, state, datetime_complete FROM trials ORDER BY number"
    study = ("runs/sweeps/002/study.db", query)
    recorded = old.query(*study)
    assert [state for _, state, _ in recorded] == ["COMPLETE", "FAIL", "PRUNED", "RUNNING"]
    done = old.again("search", "resume=must", "sweep.figures=false")
    assert "2 of 5 trials have finished before" in done.stdout
    # Another trial takes the place of the one that failed.
    assert begun("search", done) == [
        "search: resumes in runs/search/004",
        "search: runs in runs/search/005",
        "search: runs in runs/search/006",
    ]
    assert old.query(*study)[:3] == recorded[:3]
    assert {state for _, state, _ in old.query(*study)[3:]} <= {"COMPLETE", "PRUNED"}
    found = {int(cells[0]): cells[5] for cells in summary(done)}
    assert sorted(found) == list(range(6))
    assert [found[number] for number in range(3)] == ["FINISHED", "FAILED", "PRUNED"]
    assert_one_run_each(old, before, trials=6, failed=1)
