"""The first signal waits for the step in flight, the second does not."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from runner.errors import InterruptedRunError
from runner.system.signals import Interruption

SIGNALS = [signal.SIGINT, signal.SIGTERM]


def raises(number: signal.Signals) -> pytest.RaisesExc[InterruptedRunError]:
    return pytest.raises(InterruptedRunError, match=f"ended by {number.name}")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_run_outside_a_loop_and_is_remembered_inside(
    number: signal.Signals,
) -> None:
    with Interruption().handled() as interruption:
        with interruption.deferred():
            interruption.check()
            assert not interruption.received()
            assert interruption.remaining() is None
            signal.raise_signal(number)
            assert interruption.received()
            with raises(signal.SIGTERM):  # The second one does not wait.
                signal.raise_signal(signal.SIGTERM)
        with raises(signal.SIGTERM):
            interruption.check()
    with Interruption().handled(), raises(number) as error:
        signal.raise_signal(number)
    assert error.value.exit_code == 128 + number


HANGING = """
import os, signal, sys, threading
from contextlib import ExitStack
from runner.system import signals
from runner.system.signals import Interruption, ending_at_once
signals._AT_ONCE_SECONDS = 0.2
lock = threading.Lock()
lock.acquire()
left = int(sys.argv[2])
with ExitStack() as stack:
    if sys.argv[1] == "start":
        stack.enter_context(ending_at_once())
    elif sys.argv[1] == "nested":
        stack.enter_context(Interruption(600.0).handled())
        with Interruption(0.2).handled() as inner, inner.deferred():
            signal.raise_signal(signal.SIGTERM)
    else:
        interruption = stack.enter_context(Interruption(float(sys.argv[1])).handled())
        stack.enter_context(interruption.deferred())
    while True:
        try:
            while left > 0:
                left -= 1
                os.kill(os.getpid(), signal.SIGTERM)
            lock.acquire(timeout=60)
        except Exception:  # Like a library that swallows what interrupts it.
            pass
"""


@pytest.mark.parametrize(
    ("grace", "signals", "words"),
    [
        ("start", 1, ""),
        ("0.2", 1, "cause: it could not be saved in session.grace_seconds=0.2"),
        ("nested", 0, "cause: it could not be saved in session.grace_seconds=0.2"),
        ("600", 2, "cause: a second signal does not wait for the step, which is not saved"),
    ],
    ids=["at start-up", "grace period over", "after an inner one", "second signal"],
)
def test_what_does_not_end_by_itself_is_ended(grace: str, signals: int, words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING, grace, str(signals)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 143, done.stderr
    assert done.stderr.startswith("runner: ended by SIGTERM\n")
    assert words in done.stderr


def test_after_a_failure_nothing_is_deferred_and_the_handlers_are_those_before() -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with contextlib.suppress(InterruptedRunError), Interruption().handled() as interruption:
        assert [signal.getsignal(each) for each in SIGNALS] != before
        with contextlib.suppress(RuntimeError), interruption.deferred():
            raise RuntimeError
        with raises(signal.SIGINT):
            signal.raise_signal(signal.SIGINT)
        raise RuntimeError
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_signal_that_other_code_takes_for_an_error_of_its_own_still_ends_the_run() -> None:
    with raises(signal.SIGTERM), Interruption().handled():
        with contextlib.suppress(InterruptedRunError):
            signal.raise_signal(signal.SIGTERM)
        raise TypeError("Failed to convert elements of (None,) to Tensor")


def test_a_signal_that_other_code_swallows_is_raised_again() -> None:
    Interruption.check_swallowed()
    with raises(signal.SIGTERM), Interruption().handled() as interruption:
        with interruption.deferred():
            signal.raise_signal(signal.SIGTERM)
            Interruption.check_swallowed()  # It waits to be asked for.
        with contextlib.suppress(InterruptedRunError), interruption.interruptible():
            pass
        with contextlib.suppress(InterruptedRunError):
            signal.raise_signal(signal.SIGTERM)
        Interruption.check_swallowed()
        raise AssertionError


def test_another_thread_than_the_main_one_handles_no_signals() -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    during: list[object] = []

    def run() -> None:
        with Interruption().handled() as interruption:
            during.extend(signal.getsignal(each) for each in SIGNALS)
            interruption.check()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert during == before


def test_one_inside_another_has_its_signal_and_its_time_in_common() -> None:
    with Interruption(600.0).handled() as outer:
        with Interruption(100.0).handled() as inner, inner.deferred():
            signal.raise_signal(signal.SIGTERM)
            assert outer.received()
        left = outer.remaining()
        assert left is not None
        assert 90.0 < left <= 100.0
        with raises(signal.SIGTERM):
            outer.check()
    with Interruption().handled() as later:
        assert not later.noticed()


def test_a_process_that_is_kept_outlives_the_grace_period_and_a_second_signal() -> None:
    with Interruption(0.0, keeps_process=True).handled() as outer:
        with outer.deferred(), Interruption(0.0).handled() as inner, inner.deferred():
            signal.raise_signal(signal.SIGINT)
            with raises(signal.SIGINT):
                signal.raise_signal(signal.SIGINT)
            time.sleep(0.1)  # Here the thread would end the process.
        assert outer.remaining() == 0.0


def test_a_further_signal_is_never_a_second_one() -> None:
    further = [signal.SIGUSR2]
    with Interruption(600.0, further).handled() as interruption, interruption.deferred():
        signal.raise_signal(signal.SIGTERM)
        assert not interruption.has_come(signal.SIGUSR2)
        signal.raise_signal(signal.SIGUSR2)
        assert interruption.has_come(signal.SIGUSR2)
        left = interruption.remaining()
        assert left is not None
        assert left > 500.0
        with raises(signal.SIGTERM):
            interruption.check()
    with Interruption(600.0, further).handled(), Interruption().handled(), raises(signal.SIGUSR2):
        signal.raise_signal(signal.SIGUSR2)


def test_what_is_prompt_within_what_is_deferred() -> None:
    with Interruption().handled() as interruption, interruption.deferred():
        with interruption.interruptible(), raises(signal.SIGINT):
            signal.raise_signal(signal.SIGINT)
        with raises(signal.SIGINT), interruption.interruptible():
            raise AssertionError("a signal has come before")


def test_the_first_signal_is_reported_before_it_raises() -> None:
    reported: list[float | None] = []
    with Interruption(100.0).handled() as interruption:
        with (
            interruption.notifying(lambda: reported.append(interruption.remaining())),
            raises(signal.SIGINT),
        ):
            signal.raise_signal(signal.SIGINT)
        with raises(signal.SIGINT):
            signal.raise_signal(signal.SIGINT)
    (left,) = reported
    assert left is not None
    assert left > 90.0


def test_a_process_that_nobody_reads_ends_all_the_same() -> None:
    program = (
        "import os, signal\nfrom runner.errors import InterruptedRunError\n"
        "from runner.system.signals import end_at_once\n"
        "reader, terminal = os.pipe()\nos.close(reader)\n"
        "end_at_once(InterruptedRunError(signal.SIGTERM), terminal)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 143
