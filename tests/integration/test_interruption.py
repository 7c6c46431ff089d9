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
    command.ended("tiny")
    (before,) = command.tracked("tiny")
    assert before.info.status == "KILLED"
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


def test_an_unusable_store_stops_before_anything_is_made(command: Command) -> None:
    (command.folder / "notes.txt").write_text("no database, though long enough to be one" * 99)
    done = command.run(TINY, "tracking.uri=sqlite:///notes.txt")
    assert done.returncode == 1
    address = f"sqlite:///{command.folder / 'notes.txt'}"
    assert said(done)[0] == f"runner: the tracking store {address} cannot be opened"
    assert "Traceback" not in done.stderr
    assert not (command.folder / "runs").exists()


def test_a_server_that_is_away_stops_nothing(command: Command) -> None:
    patience = ("tracking.close_seconds=2", "tracking.patience_seconds=0")
    done = command.run(TINY, "tracking.uri=http://localhost:9", *patience)
    assert done.returncode == 0, done.stderr
    assert "the tracking store http://localhost:9 cannot be opened" in done.stderr
    assert "python -m runner.sync " in done.stderr
    assert "Traceback" not in done.stderr
    assert command.record("tiny/001").status == "FINISHED"
    assert command.steps("tiny/001") == [10, 20]
