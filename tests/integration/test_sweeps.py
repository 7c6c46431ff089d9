"""Sweeps as commands: one parent run, failures retried, signals, trials in other processes."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.support import runs

from .conftest import Command, finish, said, summary, wait_for

TINY = "+experiment=tiny"
NO_FIGURES = "sweep.figures=false"


def _hook(name: str, command: Command) -> str:
    marker = command.folder / "marker"
    return f"+hooks.disturb={{_target_: tests.samples.hooks.{name},step: 13,marker: '{marker}'}}"


def _children(command: Command, experiment: str) -> tuple[str, dict[str, str]]:
    """Returns the parent's status, and status by name of its children."""
    parent, children = command.sweep(experiment)
    return parent.info.status, {name: run.info.status for name, run in children.items()}


def test_a_sweep_over_a_warm_start(command: Command) -> None:
    returned = command.folder / "returned.jsonl"
    done = command.run(
        "-m",
        "+experiment=warm",
        "optimizer.learning_rate=1e-3,3e-3",
        "sweep.threshold=0.1",
        "+hydra.callbacks.returned._target_=tests.samples.callbacks.Returned",
        f"+hydra.callbacks.returned.file='{returned}'",
    )
    assert done.returncode == 0, done.stderr
    assert _children(command, "warm") == (
        "FINISHED",
        {"warm 001": "FINISHED", "warm 002": "FINISHED"},
    )
    (source,) = command.tracked("tiny")
    assert source.info.status == "FINISHED"
    assert "mlflow.parentRunId" not in source.data.tags
    objectives = [float(line) for line in returned.read_text().splitlines()]
    assert objectives == [command.record(f"warm/00{number}").objective for number in (1, 2)]
    assert objectives[0] != objectives[1]
    parent, trials = command.sweep("warm")
    tag = "runner.sweep.optimizer.learning_rate"
    assert {run.data.tags[tag] for run in trials.values()} == {"0.001", "0.003"}
    figures = command.client().list_artifacts(parent.info.run_id, "figures")
    names = {Path(file.path).stem for file in figures}
    assert names == {"learning_curves", "objective_over_trials", "slices"}
    steps = command.client().download_artifacts(
        parent.info.run_id, "steps_to_threshold.txt", str(command.folder)
    )
    assert Path(steps).read_text() in done.stdout
    assert Path(steps).read_text().count("0 of 1   > 20    > 20    > 20") == 2
    shown = [float(row[2]) for row in summary(done)]
    assert shown == pytest.approx(sorted(objectives), rel=1e-4)


@pytest.mark.soak
def test_a_signal_ends_the_whole_sweep_and_the_same_command_continues_it(command: Command) -> None:
    poison = "+data.poison_after=6,1000"
    arguments = ("-m", TINY, poison, _hook("WaitOnce", command), NO_FIGURES)
    process = command.start(*arguments)
    wait_for(command.folder / "marker", process)
    process.send_signal(signal.SIGTERM)
    (command.folder / "marker.go").touch()
    done = finish(process)
    assert done.returncode == 143
    assert "runner: ended by SIGTERM" in said(done)
    killed = ("KILLED", {"tiny 001": "FAILED", "tiny 002": "KILLED"})
    runs.wait_for(lambda: _children(command, "tiny") == killed)

    # It also tries again what has failed, and reports that.
    again = command.run(*arguments)
    assert again.returncode == 1
    assert "tiny: resumes in runs/tiny/002" in again.stdout
    first, second = summary(again)
    assert [*first[:2], *first[3:]] == ["1", "1000", "FINISHED", "tiny/002"]
    assert second[0] == "0"
    words = "trial 0 data.poison_after=6 FAILED: training stopped because the loss is nan at step 7"
    assert words in again.stdout
    assert "runner: 1 of 2 trials failed" in again.stderr
    statuses = {"tiny 001": "FAILED", "tiny 002": "FINISHED"}
    assert _children(command, "tiny") == ("FINISHED", statuses)
    parent, _ = command.sweep("tiny")
    assert parent.data.tags["runner.sweep.failed"] == "1"
    assert json.loads(parent.data.tags["runner.sweep.best"]) == [{"data.poison_after": "1000"}]


@pytest.mark.soak
def test_a_sweep_of_plans_records_nothing(command: Command) -> None:
    done = command.run("-m", TINY, "mode=plan", "optimizer.learning_rate=1e-3,3e-3")
    assert done.returncode == 0
    assert done.stdout.count("8 model variables from initializers") == 2
    assert command.tracked("tiny") == []
    assert not (command.folder / "runs").exists()


@pytest.mark.soak
@pytest.mark.parametrize("launcher", ["processes", "slurm_local", "ray"])
def test_trials_in_other_processes(command: Command, launcher: str) -> None:
    """Two warm trials share the parent and the source; one of them is killed and comes again."""
    process = command.start(
        "-m",
        "+experiment=warm",
        f"hydra/launcher={launcher}",
        _hook("WaitOnce", command),
        "seed=1,2",
        "sweep.retries=1",
        NO_FIGURES,
    )
    wait_for(command.folder / "marker", process)
    deadline = time.monotonic() + 120
    run_dirs: dict[str, Path] = {}
    # The trial that waits has saved step 10 and stays RUNNING; the other one finishes.
    while set(run_dirs) != {"RUNNING", "FINISHED"} or not command.steps(
        f"warm/{run_dirs['RUNNING'].name}"
    ):
        assert time.monotonic() < deadline
        time.sleep(0.1)
        records = (command.folder / "runs" / "warm").glob("*/run.json")
        run_dirs = {json.loads(file.read_text())["status"]: file.parent for file in records}
    owner = json.loads((run_dirs["RUNNING"] / "owner.json").read_text())["pid"]
    assert process.pid != owner
    os.kill(owner, signal.SIGKILL)
    (command.folder / "marker.go").touch()
    done = finish(process)
    assert done.returncode == 0, done.stderr
    status, children = _children(command, "warm")
    assert status == "FINISHED"
    assert set(children.values()) == {"FINISHED"}
    assert len(children) == 2
    assert len(command.tracked("tiny")) == 1
    assert [row[3] for row in summary(done)] == ["FINISHED", "FINISHED"]


@pytest.mark.soak
@pytest.mark.parametrize("launcher", ["processes", "slurm_local", "ray"])
def test_trials_side_by_side_have_devices_of_their_own(
    command: Command, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three trials that need two devices each, of four."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,0,2")
    seen = command.folder / "seen"
    done = command.run(
        "-m",
        TINY,
        "seed=1,2,3",
        f"hydra/launcher={launcher}",
        "sweep.devices_per_trial=2",
        f"+hooks.seen={{_target_: tests.samples.hooks.DevicesSeen,file: '{seen}'}}",
        NO_FIGURES,
    )
    assert done.returncode == 0, done.stderr
    assert "devices: 2 of 3,1,0,2 for each trial" in done.stdout
    in_use: list[str] = []
    lines = [line.split() for line in seen.read_text().splitlines()]
    assert len(lines) == 6
    for event, devices in lines:
        if event == "end":
            in_use.remove(devices)
            continue
        assert len(devices.split(",")) == 2
        in_use.append(devices)
        taken = ",".join(in_use).split(",")
        assert len(taken) == len(set(taken))
        assert set(taken) <= set("0123")


@pytest.mark.soak
@pytest.mark.parametrize("launcher", ["processes", "slurm_local"])
def test_a_signal_ends_trials_in_other_processes_and_the_same_command_continues_them(
    command: Command, launcher: str
) -> None:
    """SIGTERM to the sweeping process alone, or Ctrl-C in a terminal, which reaches all processes.

    Before that, a trial of `slurm_local` runs out of time: it is saved and resumed.
    """
    marker = command.folder / "marker"
    hook = f"_target_: tests.samples.hooks.WaitOnce,step: 13,marker: '{marker}-${{seed}}'"
    arguments = ("-m", TINY, f"hydra/launcher={launcher}", f"+hooks.disturb={{{hook}}}", "seed=1,2")
    process = command.start(*arguments)
    for seed in (1, 2):
        wait_for(command.folder / f"marker-{seed}", process)
    owners = [command.folder / "runs/tiny" / name / "owner.json" for name in ("001", "002")]
    trials = [psutil.Process(json.loads(owner.read_text())["pid"]) for owner in owners]
    if launcher == "slurm_local":
        trials[0].send_signal(signal.SIGUSR2)
        seed = command.record("tiny/001").settings["seed"]
        (command.folder / f"marker-{seed}.go").touch()
        while command.record("tiny/001").status != "FINISHED":
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        assert command.steps("tiny/001") == [13, 20]
        number = signal.SIGINT
        os.killpg(process.pid, number)
    else:
        number = signal.SIGTERM
        process.send_signal(number)
        time.sleep(1.0)  # Trials look for orders twice a second.
    for seed in (1, 2):
        (command.folder / f"marker-{seed}.go").touch()
    done = finish(process)
    assert done.returncode == 128 + number, done.stderr
    assert f"runner: ended by {number.name}" in said(done)
    assert psutil.wait_procs(trials, 30)[1] == []
    first = "FINISHED" if launcher == "slurm_local" else "KILLED"
    killed = ("KILLED", {"tiny 001": first, "tiny 002": "KILLED"})
    runs.wait_for(lambda: _children(command, "tiny") == killed)
    assert command.steps("tiny/002") == [10, 13]
    if launcher == "slurm_local":
        return

    again = command.run(*arguments)
    assert again.returncode == 0, again.stderr
    finished = {"tiny 001": "FINISHED", "tiny 002": "FINISHED"}
    assert _children(command, "tiny") == ("FINISHED", finished)


GRIDS = (("seed=1,2",), ("seed=3,4",))
SAME = (("seed=1,2",),) * 2
SEARCHES = (
    (
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_trials=2",
        "optimizer.learning_rate=interval(1e-4,1e-2)",
    ),
) * 2
IN_PROCESSES = tuple((*grid, "hydra/launcher=processes") for grid in GRIDS)
PAIRS = {
    "grids": (GRIDS, None, [0, 0]),
    "one grid twice": (SAME, None, [0, 2]),
    "one search": (SEARCHES, None, [0, 0]),
    "trials in processes": (IN_PROCESSES, None, [0, 0]),
    "ended": (GRIDS, signal.SIGTERM, [143, 143]),
    "interrupted search": (SEARCHES, signal.SIGINT, [130, 130]),
}


@pytest.mark.soak
@pytest.mark.parametrize("kind", PAIRS)
def test_two_sweeps_that_start_together_in_a_fresh_folder_never_stand_still(
    kind: str, fresh_command: Command
) -> None:
    """Without a database: both find that MLflow's tables have to be made."""
    pair, number, codes = PAIRS[kind]
    (fresh_command.folder / "mlflow.db").unlink()
    common = ("-m", TINY, NO_FIGURES, "train.steps=10", "train.evaluate_every=5")
    processes = [fresh_command.start(*common, *one) for one in pair]
    if number is not None:
        wait_for(fresh_command.folder / "runs" / "sweeps" / "001" / "sweep.json", processes[0])
        for process in processes:
            process.send_signal(number)
        began = time.monotonic()
    outcomes = [finish(process) for process in processes]
    assert sorted(done.returncode for done in outcomes) == codes, outcomes
    if number is not None:
        assert time.monotonic() - began < 20.0  # On a busy machine.
        # A remedy follows in a process that has opened its sweep.
        assert all(f"runner: ended by {number.name}" in said(done)[-2:] for done in outcomes)
