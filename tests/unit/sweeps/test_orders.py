from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.errors import InterruptedRunError
from runner.sweeps.attempt import Attempt, AttemptFile
from runner.sweeps.job import heeding_orders
from runner.system.locks import this_process
from runner.system.signals import Interruption

ELSEWHERE = Attempt(0, 1, (), {}, sweeper="elsewhere:1")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AttemptFile:
    monkeypatch.setattr("runner.sweeps.job._LOOK_SECONDS", 0.01)
    return AttemptFile(tmp_path / "0000.json")


@pytest.fixture
def interruption() -> Iterator[Interruption]:
    with Interruption().handled() as handled:
        yield handled


def test_a_trial_elsewhere_ends_when_it_is_called_off(
    file: AttemptFile, interruption: Interruption
) -> None:
    file.call_off()
    with (
        pytest.raises(InterruptedRunError, match="ended by SIGTERM"),
        heeding_orders(file, ELSEWHERE, interruption),
    ):
        time.sleep(60)


def test_a_signal_that_came_before_the_order_is_not_followed_by_another(
    file: AttemptFile, interruption: Interruption
) -> None:
    with interruption.deferred(), heeding_orders(file, ELSEWHERE, interruption):
        signal.raise_signal(signal.SIGINT)
        file.call_off()
        time.sleep(0.2)  # A second signal would raise here.
    with pytest.raises(InterruptedRunError, match="ended by SIGINT"):
        interruption.check()


def test_the_sweeping_process_needs_no_orders(
    file: AttemptFile, interruption: Interruption
) -> None:
    file.call_off()
    with heeding_orders(file, Attempt(0, 1, (), {}, sweeper=this_process()), interruption):
        time.sleep(0.05)
    assert not interruption.received()
