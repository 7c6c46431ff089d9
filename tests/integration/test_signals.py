"""SIGTERM and SIGINT at every point of a run's life, each in a process of its own."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from runner.runs.saved_checkpoints import by_step, state
from tests.tiny.forked import Forks

from .conftest import Command, finish, said
from .forks import SAVING, Case, MakeCase, assert_same, await_for

TINY = ("+experiment=tiny", "tracking.close_seconds=60")
UNTRACKED = ("+experiment=tiny", "tracking=none")


@pytest.fixture(scope="module")
def twin(forks: Forks, migrated_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A run that nothing disturbs."""
    twin = Case(forks, tmp_path_factory.mktemp("twin"), TINY)
    shutil.copy(migrated_database, twin.folder / "mlflow.db")
    assert twin.run() == 0, twin.output()
    return twin


def signalled(
    case: Case, file: Path, *numbers: signal.Signals, pause: float = 0.0
) -> tuple[int, float]:
    """Sends signals once a file is there; the exit code, and the seconds from the last to it.

    Args:
      case: what to start.
      file: what to wait for.
      *numbers: the signals.
      pause: seconds before each of them.
    """
    process = case.start()
    await_for(lambda: file.exists() or not psutil.pid_exists(process.pid), every=0.001)
    assert file.exists(), case.output()
    for number in numbers:
        time.sleep(pause)
        process.send_signal(number)
    began = time.monotonic()
    return process.wait(), time.monotonic() - began


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)
def test_at_start_up_nothing_is_made(
    fresh_command: Command, number: signal.Signals, code: int
) -> None:
    process = fresh_command.start("+experiment=tiny")
    # TensorFlow is imported after the follower is started.
    await_for(lambda: psutil.Process(process.pid).children() or process.poll() is not None)
    time.sleep(0.5)
    process.send_signal(number)
    done = finish(process)
    assert (done.returncode, said(done)[0]) == (code, f"runner: ended by {number.name}")
    assert not (fresh_command.folder / "runs").exists()


def test_in_a_save_it_is_finished_and_the_run_goes_on_from_it(
    make_case: MakeCase, twin: Case
) -> None:
    case = make_case("case", *TINY)
    code, _ = signalled(case, case.marker(SAVING), signal.SIGTERM)
    assert code == 143, case.output()
    run = case.directory("tiny/001")
    # The first save is that of the best, after step 10, which is then saved too.
    assert state(run.checkpoints) == ["model.ckpt-10"]
    assert run.require().status == "KILLED"
    assert case.run() == 0, case.output()
    assert_same(twin, case, "tiny")


def test_in_an_evaluation_it_is_put_off_to_the_next_start(make_case: MakeCase, twin: Case) -> None:
    case = make_case("case", *TINY, "+data.slow_validation=evaluating")
    code, _ = signalled(case, case.marker("evaluating"), signal.SIGINT)
    assert code == 130, case.output()
    run = case.directory("tiny/001")
    assert state(run.checkpoints) == ["model.ckpt-10"]
    assert run.evaluation_due.exists()
    assert "validation" not in case.output()
    assert case.run() == 0, case.output()
    assert not run.evaluation_due.exists()
    assert_same(twin, case, "tiny")


HANGING = (*UNTRACKED, "+data.hang_after=15", "train.save_input=false", "train.log_every=1")


def test_a_step_that_does_not_end_ends_with_the_grace_period(make_case: MakeCase) -> None:
    case = make_case("case", *HANGING, "session.grace_seconds=2")
    code, seconds = signalled(case, case.marker("hanging"), signal.SIGTERM, pause=1.0)
    assert code == 143, case.output()
    assert seconds < 15.0  # On a busy machine; 2 on an idle one.
    assert "it could not be saved in session.grace_seconds=2" in case.output()
    run = case.directory("tiny/001")
    assert state(run.checkpoints) == ["model.ckpt-10"]
    assert list(by_step(run.checkpoints)) == [10]


def test_a_second_signal_ends_at_once_and_leaves_the_checkpoint_whole(make_case: MakeCase) -> None:
    case = make_case("case", *HANGING, "session.grace_seconds=600")
    code, seconds = signalled(case, case.marker("hanging"), *[signal.SIGINT] * 2, pause=1.0)
    assert code == 130, case.output()
    assert seconds < 15.0
    assert "a second signal does not wait for the step" in case.output()
    assert state(case.directory("tiny/001").checkpoints) == ["model.ckpt-10"]


def test_of_two_processes_that_start_at_once_one_trains(make_case: MakeCase) -> None:
    case = make_case("case", *UNTRACKED, "+hooks.slow={_target_: tests.tiny.hooks.Slow,"
                     " seconds: 0.3, marker: stepping}")  # fmt: skip
    codes = sorted(process.wait() for process in [case.start(), case.start()])
    assert codes == [0, 2], case.output()
    assert "is in use" in case.output()
    assert "another process owns it: process " in case.output()
    assert case.directory("tiny/001").require().status == "FINISHED"
    assert not case.directory("tiny/002").path.exists()


def test_a_clock_that_is_set_back_changes_nothing(make_case: MakeCase, twin: Case) -> None:
    case = make_case(
        "case",
        *TINY,
        "+hooks.back={_target_: tests.tiny.hooks.SetClockBack, step: 7, marker: back}",
    )
    assert case.run() == 0, case.output()
    assert_same(twin, case, "tiny")
