"""Runs that are killed, interrupted, run twice at once, or fail."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from itertools import cycle

import psutil
import pytest

from runner.runs.saved_checkpoints import by_step, state
from tests.support.privileges import mounted
from tests.support.runs import wait_for

from .cases import (
    SAVING,
    STEPPING,
    MakeCase,
    assert_same,
    assert_same_model,
    delivered,
    kill,
    kill_anywhere,
    kill_often,
    signalled,
)
from .conftest import Command, finish, said

# Early stopping keeps a state of its own.
TINY = (
    "+experiment=tiny",
    "train.log_every=3",
    "+hooks.stop={_target_: runner.hooks.EarlyStoppingHook, evaluation: '${run:evaluation}',"
    " patience: 50, directory: '${run:directory}'}",
    "tracking.close_seconds=60",
    "tracking.system_metrics=false",  # A run of ten seconds would record them.
)
# Waits after step 13, and in an evaluation, where it does not find a file.
WAITING = (
    *TINY,
    "train.steps=30",
    "+data.slow_validation=evaluating",
    "+hooks.wait={_target_: tests.samples.hooks.WaitOnce, step: 13, marker: waiting}",
)
UNTRACKED = ("+experiment=tiny", "tracking=none")


def test_a_run_survives_every_kind_of_end_bit_for_bit(make_case: MakeCase) -> None:
    """SIGKILL between two steps, then SIGTERM in an evaluation."""
    twin, case = make_case("twin", *WAITING), make_case("case", *WAITING)
    for marker in (twin.marker("waiting"), twin.marker("evaluating"), case.marker("evaluating")):
        marker.touch()
    assert twin.code() == 0, twin.output()
    run = case.directory("tiny/001")

    code, _ = signalled(case, case.marker("waiting"), signal.SIGKILL)
    assert code == -signal.SIGKILL
    wait_for(lambda: delivered(case, "tiny")[0] == "KILLED")
    assert (run.load_record().status, state(run.checkpoints)) == ("RUNNING", ["model.ckpt-10"])

    case.marker("evaluating").unlink()
    code, _ = signalled(case, case.marker("evaluating"), signal.SIGTERM)
    assert code == 143, case.output()
    *_, saved, best, files, resume, ended, remedy = case.output().splitlines()
    assert (saved, files) == ("saved:   step 20", "files:   runs/tiny/001")
    assert best.startswith("best:    validation/loss ")
    assert resume.startswith("resume:  ")
    assert "+experiment=tiny" in resume
    assert ended == "runner: ended by SIGTERM"
    assert remedy == "  remedy: the same command continues the run"
    assert run.evaluation_due.exists(), "it is put off to the next start"
    assert state(run.checkpoints) == ["model.ckpt-10", "model.ckpt-20"]
    assert run.load_record().status == "KILLED"
    wait_for(lambda: delivered(case, "tiny")[0] == "KILLED")

    assert case.code() == 0, case.output()
    assert case.output().count("restores this run's checkpoint, and reads no pretrained one") == 2
    assert not run.evaluation_due.exists()
    assert_same(twin, case, "tiny")


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGINT,) * 2], ids=str)
def test_a_run_that_only_waits_for_its_delivery_is_finished(
    make_case: MakeCase, numbers: tuple[signal.Signals, ...]
) -> None:
    """No server answers: a signal shortens the wait, a second one ends it."""
    case = make_case(
        "case", "+experiment=tiny", "tracking.uri=http://127.0.0.1:9", "session.grace_seconds=1"
    )
    run = case.directory("tiny/001")
    process = case.start()
    wait_for(lambda: (record := run.read()) is not None and record.trained)
    for number in numbers:
        time.sleep(0.5)
        process.send_signal(number)
    assert process.wait() == 0, case.output()
    assert "could not be saved" not in case.output()
    assert f"runner sync {run.path}" in case.output()
    assert "\nbest: " in case.output()
    assert run.load_record().status == "FINISHED"


def test_at_start_up_nothing_is_made(fresh_command: Command) -> None:
    process = fresh_command.start("+experiment=tiny")
    # TensorFlow is imported after the follower is started.
    wait_for(lambda: psutil.Process(process.pid).children() or process.poll() is not None)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    done = finish(process)
    assert (done.returncode, said(done)[0]) == (143, "runner: ended by SIGTERM")
    assert not (fresh_command.folder / "runs").exists()


HANGING = (*UNTRACKED, "+data.hang_after=15", "train.save_input=false", "train.log_every=1")


@pytest.mark.soak
def test_a_step_that_does_not_end_ends_with_the_grace_period(make_case: MakeCase) -> None:
    case = make_case("case", *HANGING, "session.grace_seconds=2")
    code, seconds = signalled(case, case.marker("hanging"), signal.SIGTERM, pause=1.0)
    assert code == 143, case.output()
    assert seconds < 15.0  # On a busy machine; 2 on an idle one.
    assert "it could not be saved in session.grace_seconds=2" in case.output()
    run = case.directory("tiny/001")
    assert state(run.checkpoints) == ["model.ckpt-10"]
    assert list(by_step(run.checkpoints)) == [10]


@pytest.mark.soak
def test_a_second_signal_ends_at_once_and_leaves_the_checkpoint_whole(make_case: MakeCase) -> None:
    case = make_case("case", *HANGING, "session.grace_seconds=600")
    code, seconds = signalled(case, case.marker("hanging"), *[signal.SIGINT] * 2, pause=1.0)
    assert code == 130, case.output()
    assert seconds < 15.0
    assert "a second signal does not wait for the step" in case.output()
    assert state(case.directory("tiny/001").checkpoints) == ["model.ckpt-10"]


@pytest.mark.soak
def test_of_two_processes_that_start_at_once_one_trains(make_case: MakeCase) -> None:
    case = make_case("case", *UNTRACKED, "+hooks.slow={_target_: tests.samples.hooks.Slow,"
                     " seconds: 0.3, marker: stepping}")  # fmt: skip
    codes = sorted(process.wait() for process in [case.start(), case.start()])
    assert codes == [0, 2], case.output()
    assert "is in use" in case.output()
    assert "another process owns it: process " in case.output()
    assert case.directory("tiny/001").load_record().status == "FINISHED"
    assert not case.directory("tiny/002").path.exists()


@pytest.mark.soak
def test_a_clock_that_is_set_back_changes_nothing(make_case: MakeCase) -> None:
    back = "+hooks.back={_target_: tests.samples.hooks.SetClockBack, step: 7, marker: back}"
    twin, case = make_case("twin", *TINY), make_case("case", *TINY, back)
    assert twin.code() == 0, twin.output()
    assert case.code() == 0, case.output()
    assert_same(twin, case, "tiny")


# Full from step 21 to 41: two checkpoints, an evaluation and the journal find no room.
FILLING = (
    "+experiment=tiny",
    "train.steps=60",
    "train.log_every=3",
    "train.evaluate_every=15",
    "train.checkpoint_every=10",
    "+model.ballast=100000",
    "+hooks.fill={_target_: tests.samples.hooks.FillDisk, folder: runs, step: 21, until: 41}",
    "tracking.close_seconds=60",
)


@pytest.mark.soak
def test_a_full_disk_costs_saves_and_nothing_else(make_case: MakeCase) -> None:
    twin, case = make_case("twin", *FILLING), make_case("case", *FILLING)
    assert twin.code() == 0, twin.output()
    case.marker("small").touch()
    with mounted(case.folder / "runs", "16m"):
        assert case.code() == 0, case.output()
        for step in (30, 40):
            assert f"warning: step {step} is not saved" in case.output()
        assert "No space left on device" in case.output()
        assert state(case.directory("tiny/001").checkpoints) == ["model.ckpt-50", "model.ckpt-60"]
        assert_same(twin, case, "tiny")


# With callbacks, values stay in memory; without, they are in a file, whose end makes some room.
CALLED = ("train.steps_per_epoch=15", "+callbacks.none={_target_: keras.callbacks.Callback}")


@pytest.mark.soak
@pytest.mark.parametrize("step", [1, 21])
@pytest.mark.parametrize(
    ("more", "message"), [(CALLED, "cannot be written"), ((), "runner: step 60 is not saved")]
)
def test_after_a_disk_that_stays_full_the_same_command_continues_the_run(
    make_case: MakeCase, step: int, more: Sequence[str], message: str
) -> None:
    filling = (*FILLING, f"hooks.fill.step={step}", "hooks.fill.until=0", *more)
    twin, case = make_case("twin", *filling), make_case("case", *filling)
    assert twin.code() == 0, twin.output()
    case.marker("small").touch()
    with mounted(case.folder / "runs", "16m"):
        assert case.start("tracking.close_seconds=2").wait() == 1, case.output()
        assert "Traceback" not in case.output()
        assert "Logging error" not in case.output()
        *_, last, cause, remedy = case.output().splitlines()
        assert last.startswith("runner: ")
        assert last.endswith(message)
        assert "No space left on device" in cause
        assert remedy.startswith("  remedy: make room or restore access")
        assert "the same command" in remedy
        case.marker("small").unlink()
        (case.folder / "runs" / "filler").unlink()
        assert case.code() == 0, case.output()
        assert_same(twin, case, "tiny")


# Checkpoints of 16 MB.
LARGE = (
    *TINY,
    "train.evaluate_every=15",
    "train.checkpoint_every=10",
    "+model.ballast=4000000",
    "+hooks.slow={_target_: tests.samples.hooks.Slow, seconds: 0.02, marker: stepping}",
)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("seed", "numbers"),
    [(1, (signal.SIGKILL,)), (2, (signal.SIGKILL,)), (3, (signal.SIGTERM, signal.SIGKILL))],
)
def test_twenty_kills_at_random(
    make_case: MakeCase, seed: int, numbers: Sequence[signal.Signals]
) -> None:
    kills = 20
    arguments = (*LARGE, f"train.steps={25 * kills}")
    twin, victim = make_case("twin", *arguments), make_case("victim", *arguments)
    began = time.monotonic()
    process = twin.start()
    wait_for(lambda: twin.marker(STEPPING).exists() or "runner: " in twin.output())
    starting = time.monotonic() - began
    assert process.wait() == 0, twin.output()
    kill_often(victim, starting, 0.1 * kills, kills, seed, numbers)
    assert victim.code() == 0, victim.output()
    assert_same(twin, victim, "tiny")


BRIEF = (*TINY, "train.steps=30")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_hundred_kills_anywhere_change_nothing(make_case: MakeCase, seed: int) -> None:
    """Kills commands at random moments from their start to their end, and compares what is left."""
    twin, lives = make_case("twin", *BRIEF), {}
    for mode in ("train", "evaluate", "export"):
        began = time.monotonic()
        assert twin.start(f"mode={mode}").wait() == 0, twin.output()
        lives[mode] = time.monotonic() - began
    generator = random.Random(seed)
    signals = [number for _, number in zip(range(100), cycle((signal.SIGKILL, signal.SIGTERM)))]
    index = 0
    while signals:
        victim = make_case(f"victim {index}", *BRIEF)
        index += 1
        kill_anywhere(victim, lives, signals, generator)
        assert_same(twin, victim, "tiny")
        assert_same_model(twin, victim, "tiny")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("start", range(4))
def test_a_kill_at_any_operation_on_files_changes_nothing(make_case: MakeCase, start: int) -> None:
    """Kills a new run, and then the same run resumed, at one in four of the operations."""
    brief = (*BRIEF, "train.keep_checkpoints=1")
    twin = make_case("twin", *brief)
    assert twin.code() == 0, twin.output()
    code, operation = -signal.SIGKILL, start
    while code == -signal.SIGKILL:
        victim = make_case(f"victim {operation}", *brief)
        code = victim.start(killed_at=operation).wait()
        if code != 0:
            assert victim.start(killed_at=operation).wait() in (0, -signal.SIGKILL)
        record = victim.directory("tiny/001").read()
        if record is None or record.status != "FINISHED":
            assert victim.code() == 0, victim.output()
        assert_same(twin, victim, "tiny")
        operation += 4
    assert operation > 100


# Steps of each shipped experiment; those of its sources are as few.
FEW = ("train.steps=16", "train.log_every=3", "train.evaluate_every=6", "train.checkpoint_every=5")
_QUOTED = ",".join(f"'{each}'" for each in FEW)
_CNN = f"scaffolds.cnn.overrides=[{_QUOTED}]"
SHIPPED = {
    "digits_cnn": FEW,
    "short_sequences": (*FEW, _CNN),
    "lstm_cnn": (*FEW, _CNN, f'scaffolds.lstm.overrides=[{_QUOTED},"{_CNN}"]'),
}


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("experiment", list(SHIPPED))
def test_every_shipped_experiment_is_resumed_exactly(make_case: MakeCase, experiment: str) -> None:
    """Killed in the first saves, which are those of a source where the experiment has one."""
    arguments = (f"+experiment={experiment}", *SHIPPED[experiment], "tracking.close_seconds=60")
    twin, victim = make_case("twin", *arguments), make_case("victim", *arguments)
    assert twin.code() == 0, twin.output()
    for index in range(8):
        kill(victim, SAVING, 0.03 * index)
    assert victim.code() == 0, victim.output()
    assert_same(twin, victim, experiment)
