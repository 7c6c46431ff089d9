"""Searches as commands: killed and resumed, by two processes at once, pruned."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path

import pytest

from tests.support import runs

from .conftest import Command, finish, summary, wait_for

SEARCH = (
    "-m",
    "hydra/sweeper=optuna",
    "hydra/sweeper/sampler=random",
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


@pytest.mark.soak
def test_a_search_that_is_killed_is_continued_by_the_same_command_and_prunes(
    command: Command,
) -> None:
    marker = command.folder / "marker"
    arguments = (
        "-m",
        "hydra/sweeper=optuna",
        "+experiment=tiny",
        "optimizer.learning_rate=interval(1e-9,0.01)",
        "hydra.sweeper.sampler={_target_: tests.samples.samplers.WorseEachTime}",
        "hydra/sweeper/pruner=median",
        "hydra.sweeper.pruner.n_startup_trials=1",
        "hydra.sweeper.n_trials=2",
        "train.evaluate_every=5",
        f"+hooks.disturb={{_target_: tests.samples.hooks.WaitOnce,step: 13,marker: '{marker}'}}",
        "sweep.figures=false",
    )
    process = command.start(*arguments)
    wait_for(marker, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    runs.wait_for(lambda: set(command.statuses("tiny")) == {"KILLED"})
    assert _states(command) == ["RUNNING"]

    done = command.run(*arguments)
    assert done.returncode == 0, done.stderr
    assert _states(command) == ["COMPLETE", "PRUNED"]
    assert "tiny: resumes in runs/tiny/001" in done.stdout
    assert [(row[0], row[3]) for row in summary(done)] == [("0", "FINISHED"), ("1", "PRUNED")]
    parent, trials = command.sweep("tiny")
    statuses = {name: run.info.status for name, run in trials.items()}
    assert statuses == {"tiny 001": "FINISHED", "tiny 002": "KILLED"}
    assert parent.info.status == "FINISHED"
    assert trials["tiny 002"].data.tags["runner.pruned"].startswith("pruned at step ")


@pytest.mark.soak
@pytest.mark.parametrize("objectives", [False, True])
def test_two_processes_search_one_study(command: Command, objectives: bool) -> None:
    arguments = [*SEARCH, "hydra.sweeper.n_trials=3", f"sweep.figures={objectives}"]
    if objectives:
        goals = "{validation/loss: minimize,validation/accuracy: maximize}"
        arguments.append(f"+hydra.sweeper.objectives={goals}")
    processes = [command.start(*arguments) for _ in range(2)]
    outcomes = [finish(process) for process in processes]
    assert [done.returncode for done in outcomes] == [0, 0], [done.stderr for done in outcomes]
    assert _states(command) == ["COMPLETE"] * 3
    parent, trials = command.sweep("tiny")
    assert len(trials) == 3
    assert {run.info.status for run in (parent, *trials.values())} == {"FINISHED"}
    assert parent.data.tags["runner.sweep.trials"] == "3"
    figures = command.client().list_artifacts(parent.info.run_id, "figures")
    names = {Path(file.path).stem for file in figures}
    assert names >= ({"pareto_front", "slices_loss"} if objectives else set())
    # The process that ended last has seen all.
    assert 3 in [len(summary(done)) for done in outcomes]
