"""The first signal waits for the step in flight, the second does not."""

from __future__ import annotations

import signal
import threading

import pytest

from runner.errors import InterruptedRunError
from runner.interruption import Interruption

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", SIGNALS)
def test_outside_a_loop_a_signal_ends_the_run_at_once(number: signal.Signals) -> None:
    with (
        Interruption().handled() as interruption,
        pytest.raises(InterruptedRunError, match=f"ended by {number.name}") as error,
    ):
        signal.raise_signal(number)
    assert interruption.received()
    assert error.value.exit_code == 128 + number


@pytest.mark.parametrize("number", SIGNALS)
def test_inside_a_loop_the_first_signal_is_remembered(number: signal.Signals) -> None:
    with Interruption().handled() as interruption:
        with interruption.deferred():
            assert not interruption.received()
            interruption.check()
            signal.raise_signal(number)
            assert interruption.received()
        with pytest.raises(InterruptedRunError, match=f"ended by {number.name}"):
            interruption.check()


def test_inside_a_loop_the_second_signal_does_not_wait() -> None:
    with Interruption().handled() as interruption, interruption.deferred():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(InterruptedRunError, match="ended by SIGTERM"):
            signal.raise_signal(signal.SIGTERM)


def test_after_a_loop_a_signal_ends_the_run_at_once() -> None:
    with Interruption().handled() as interruption:
        with interruption.deferred():
            pass
        with pytest.raises(InterruptedRunError, match="ended by SIGINT"):
            signal.raise_signal(signal.SIGINT)


def test_a_loop_that_fails_no_longer_defers() -> None:
    with Interruption().handled() as interruption:
        with pytest.raises(RuntimeError, match="step failed"), interruption.deferred():
            raise RuntimeError("step failed")
        with pytest.raises(InterruptedRunError, match="ended by SIGINT"):
            signal.raise_signal(signal.SIGINT)


def test_the_handlers_that_were_there_come_back() -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with Interruption().handled():
        assert [signal.getsignal(each) for each in SIGNALS] != before
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_the_handlers_come_back_after_an_error() -> None:
    before = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(RuntimeError, match="failed"), Interruption().handled():
        raise RuntimeError("failed")
    assert [signal.getsignal(each) for each in SIGNALS] == before


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
