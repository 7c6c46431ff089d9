"""Searches as commands: killed and resumed, by two processes at once, pruned."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from .conftest import Command, finish, wait_for

SEARCH = (
    "-m",
    "hydra/sweeper=optuna",
    "hydra/sweeper/sampler=random",
    "hydra.sweeper.sampler.seed=3",
    "+experiment=tiny",
    "optimizer.learning_rate=tag(log,interval(1e-4,1e-1))",
    "+model.units=range(2,5)",
)


def _states(command: Command, sweep: str = "001") -> list[str]:
    database = command.folder / "runs" / "sweeps" / sweep / "study.db"
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        return [
            state for (state,) in connection.execute("SELECT state FROM trials ORDER BY number")
        ]


def _rows(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    lines = done.stdout.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("trial  "))
    rows = [line.split() for line in lines[start + 1 :]]
    return [row for row in rows if row and row[0].isdecimal()]


def test_a_search_that_is_killed_is_continued_by_the_same_command(command: Command) -> None:
    marker = command.folder / "marker"
    hook = f"+hooks.disturb={{_target_: tests.tiny.hooks.WaitOnce,step: 13,marker: '{marker}'}}"
    arguments = (*SEARCH, hook, "hydra.sweeper.n_trials=3")
    process = command.start(*arguments)
    wait_for(marker, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    command.ended("tiny")
    assert _states(command) == ["RUNNING"]

    done = command.run(*arguments)
    assert done.returncode == 0, done.stderr
    assert _states(command) == ["COMPLETE"] * 3
    assert "tiny: resumes in runs/tiny/001" in done.stdout
    rows = _rows(done)
    assert sorted(row[0] for row in rows) == ["0", "1", "2"]
    losses = [float(row[3]) for row in rows]
    assert losses == sorted(losses)
    runs = {run.info.run_name: run for run in command.tracked("tiny")}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    parent = runs.pop("tiny sweep")
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    assert sorted(runs) == ["tiny 001", "tiny 002", "tiny 003"]


def test_pruned_trials_are_marked(command: Command) -> None:
    done = command.run(
        *SEARCH,
        "hydra/sweeper/pruner=median",
        "hydra.sweeper.pruner.n_startup_trials=1",
        "hydra.sweeper.n_trials=5",
        "train.evaluate_every=5",
    )
    assert done.returncode == 0, done.stderr
    assert "PRUNED" in _states(command)
    pruned = [run for run in command.tracked("tiny") if "runner.pruned" in run.data.tags]
    assert {run.info.status for run in pruned} == {"KILLED"}
    assert len(pruned) == _states(command).count("PRUNED")
    assert len(pruned) == len([row for row in _rows(done) if row[4] == "PRUNED"])
    for run in pruned:
        assert run.data.tags["runner.pruned"].startswith("pruned at step ")


@pytest.mark.parametrize("objectives", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_two_processes_search_one_study(command: Command, objectives: bool) -> None:
    arguments = [*SEARCH, "hydra.sweeper.n_trials=4", "hydra.sweeper.sampler.seed=null"]
    if objectives:
        goals = "{validation/loss: minimize,validation/accuracy: maximize}"
        arguments.append(f"+hydra.sweeper.objectives={goals}")
    processes = [command.start(*arguments) for _ in range(2)]
    outcomes = [finish(process) for process in processes]
    assert [done.returncode for done in outcomes] == [0, 0], [done.stderr for done in outcomes]
    assert _states(command) == ["COMPLETE"] * 4
    runs = {run.info.run_name: run for run in command.tracked("tiny")}
    parent = runs.pop("tiny sweep")
    assert len(runs) == 4
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    assert {run.info.status for run in (parent, *runs.values())} == {"FINISHED"}
    assert parent.data.tags["runner.sweep.trials"] == "4"
    figures = command.client().list_artifacts(parent.info.run_id, "figures")
    names = {Path(file.path).stem for file in figures}
    assert names >= ({"pareto_front", "slices_loss"} if objectives else {"learning_curves"})
    # The process that ended last has seen all.
    assert 4 in [len(_rows(done)) for done in outcomes]
