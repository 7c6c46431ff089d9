"""Runs that are killed, interrupted, run twice at once, or fail."""

from __future__ import annotations

import signal
from subprocess import Popen

import pytest

from .conftest import Command, finish, said, wait_for

TINY = "+experiment=tiny"


def _hook(name: str, command: Command, **arguments: int) -> list[str]:
    values = {"step": 13, "marker": str(command.folder / "marker"), **arguments}
    items = ",".join(f"{key}: '{value}'" if key == "marker" else f"{key}: {value}"
                     for key, value in values.items())  # fmt: skip
    return [f"+hooks.disturb={{_target_: tests.tiny.hooks.{name},{items}}}"]


def _waiting(command: Command, *arguments: str) -> Popen[str]:
    """Starts a run that waits after step 13."""
    process = command.start(TINY, *_hook("WaitOnce", command), *arguments)
    wait_for(command.folder / "marker", process)
    return process


def _go_on(command: Command) -> None:
    (command.folder / "marker.go").touch()


def test_a_killed_run_is_continued_by_the_same_command(command: Command) -> None:
    hook = _hook("WaitOnce", command)
    process = _waiting(command)

    rival = command.run(TINY, *hook)
    assert rival.returncode == 2
    assert said(rival)[0] == "runner: runs/tiny/001 is in use"
    assert f"another process owns it: process {process.pid} on " in rival.stderr
    assert process.poll() is None

    process.kill()
    process.communicate()
    (before,) = command.tracked("tiny")
    assert before.info.status == "RUNNING"
    assert (command.record("tiny/001").status, command.steps("tiny/001")) == ("RUNNING", [10])

    done = command.run(TINY, *hook, "resume=must")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:3] == [
        "tiny: resumes in runs/tiny/001",
        "  own checkpoint: pretrained sources not read",
        *[line for line in done.stdout.splitlines() if line.startswith("step 15/20")],
    ]
    (after,) = command.tracked("tiny")
    assert (after.info.run_id, after.info.status) == (before.info.run_id, "FINISHED")
    steps = [
        metric.step
        for metric in command.client().get_metric_history(after.info.run_id, "validation/loss")
    ]
    assert steps == [10, 20]
    assert command.steps("tiny/001") == [10, 20]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)
def test_a_signal_ends_a_run_in_good_order(
    command: Command, number: signal.Signals, code: int
) -> None:
    process = _waiting(command)
    process.send_signal(number)
    _go_on(command)
    done = finish(process)
    assert done.returncode == code
    assert said(done) == [
        f"runner: ended by {number.name}",
        "  remedy: the same command continues the run",
    ]
    assert command.statuses("tiny") == ["KILLED"]
    assert (command.record("tiny/001").status, command.steps("tiny/001")) == ("KILLED", [10, 13])


def test_a_loss_of_nan_ends_a_run_with_a_clear_message(command: Command) -> None:
    done = command.run(TINY, "+data.poison_after=13")
    assert done.returncode == 1
    assert said(done) == [
        "runner: training stopped because the loss is nan at step 14",
        "  cause: the last checkpoint before it is runs/tiny/001/checkpoints/model.ckpt-10",
        "  remedy: look at the data and the learning rate, for example with half of it: "
        "optimizer.learning_rate=0.0005",
    ]
    (run,) = command.tracked("tiny")
    assert run.info.status == "FAILED"
    assert run.data.tags["runner.exception"].startswith("NonFiniteLossError: training stopped")


def test_an_error_in_the_users_code_shows_where(command: Command) -> None:
    done = command.run(TINY, *_hook("FailOnce", command))
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("ValueError: the hook failed")
    (run,) = command.tracked("tiny")
    assert run.info.status == "FAILED"
    assert run.data.tags["runner.exception"] == "ValueError: the hook failed"
    artifacts = [each.path for each in command.client().list_artifacts(run.info.run_id)]
    assert "traceback.txt" in artifacts
    assert command.record("tiny/001").status == "FAILED"


def test_an_unreachable_store_stops_before_anything_is_made(command: Command) -> None:
    done = command.run(TINY, "tracking.uri=http://localhost:9")
    assert done.returncode == 1
    assert said(done)[0].startswith("runner: the tracking store http://localhost:9 cannot be ")
    assert "Traceback" not in done.stderr
    assert not (command.folder / "runs").exists()


def _children(command: Command, experiment: str) -> tuple[str, dict[str, str]]:
    """Returns the parent's status, and status by name of its children."""
    runs = command.tracked(experiment)
    (parent,) = (run for run in runs if run.info.run_name.endswith(" sweep"))
    children = [run for run in runs if run is not parent]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} <= {parent.info.run_id}
    return parent.info.status, {run.info.run_name: run.info.status for run in children}


def test_a_sweep_over_a_warm_start(command: Command) -> None:
    returned = command.folder / "returned.jsonl"
    done = command.run(
        "-m",
        "+experiment=warm",
        "optimizer.learning_rate=1e-3,3e-3",
        "+hydra.callbacks.returned._target_=tests.tiny.callbacks.Returned",
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
    rates = {run.data.params.get("optimizer.learning_rate") for run in command.tracked("warm")}
    assert rates == {None, "0.001", "0.003"}


def test_a_failing_trial_leaves_no_run_running(command: Command) -> None:
    done = command.run("-m", TINY, "+data.poison_after=3,1000,6")
    assert done.returncode == 1
    for after in (3, 6):
        failed = f"+data.poison_after={after} failed: training stopped because the loss is nan"
        assert f"{failed} at step {after + 1}" in done.stderr
    assert "Traceback" not in done.stderr
    assert _children(command, "tiny") == (
        "FAILED",
        {"tiny 001": "FAILED", "tiny 002": "FINISHED", "tiny 003": "FAILED"},
    )


def test_a_signal_ends_the_whole_sweep(command: Command) -> None:
    process = command.start(
        "-m", TINY, *_hook("WaitOnce", command), "optimizer.learning_rate=1e-3,3e-3"
    )
    wait_for(command.folder / "marker", process)
    process.send_signal(signal.SIGTERM)
    _go_on(command)
    done = finish(process)
    assert done.returncode == 143
    assert said(done)[0] == "runner: ended by SIGTERM"
    assert _children(command, "tiny") == ("KILLED", {"tiny 001": "KILLED"})


def test_a_mistake_in_one_trial_leaves_no_run_running(command: Command) -> None:
    done = command.run("-m", TINY, "optimizer=adam,nosuch")
    assert done.returncode == 2
    assert "nosuch" in said(done)[0]
    assert _children(command, "tiny")[0] == "FAILED"
    assert "RUNNING" not in command.statuses("tiny")


def test_a_sweep_of_plans_records_nothing(command: Command) -> None:
    done = command.run("-m", TINY, "mode=plan", "optimizer.learning_rate=1e-3,3e-3")
    assert done.returncode == 0
    assert done.stdout.count("body/dense/kernel/Adam_1") == 2
    assert command.tracked("tiny") == []
