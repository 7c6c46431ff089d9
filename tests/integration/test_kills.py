"""A run that is killed at random moments ends bit for bit like one that is not."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

import pytest

from .forks import SAVING, STEPPING, MakeCase, assert_same, await_for, kill, kill_often

# Checkpoints of 16 MB; early stopping keeps a state of its own.
TINY = (
    "+experiment=tiny",
    "train.log_every=3",
    "train.evaluate_every=15",
    "train.checkpoint_every=10",
    "+model.ballast=4000000",
    "+hooks.stop={_target_: runner.hooks.EarlyStoppingHook, evaluation: '${run:evaluation}',"
    " patience: 50, directory: '${run:directory}'}",
    "+hooks.slow={_target_: tests.tiny.hooks.Slow, seconds: 0.02, marker: stepping}",
    "tracking.close_seconds=60",
)
# Steps of each shipped experiment; those of its sources are as few.
FEW = ("train.steps=16", "train.log_every=3", "train.evaluate_every=6", "train.checkpoint_every=5")
_QUOTED = ",".join(f"'{each}'" for each in FEW)
_CNN = f"scaffolds.cnn.overrides=[{_QUOTED}]"
SHIPPED = {
    "digits_cnn": FEW,
    "short_sequences": (*FEW, _CNN),
    "lstm_cnn": (*FEW, _CNN, f'scaffolds.lstm.overrides=[{_QUOTED},"{_CNN}"]'),
}


def kill_and_compare(
    make_case: MakeCase,
    kills: int,
    seed: int,
    numbers: Sequence[signal.Signals] = (signal.SIGKILL,),
) -> None:
    arguments = (*TINY, f"train.steps={25 * kills}")
    twin, victim = make_case("twin", *arguments), make_case("victim", *arguments)
    began = time.monotonic()
    process = twin.start()
    await_for(lambda: twin.marker(STEPPING).exists() or "runner: " in twin.output())
    starting = time.monotonic() - began
    assert process.wait() == 0, twin.output()
    kill_often(victim, starting, 0.1 * kills, kills, seed, numbers)
    assert victim.run() == 0, victim.output()
    assert_same(twin, victim, "tiny")


def test_a_run_killed_at_random_ends_as_if_it_had_not_been(make_case: MakeCase) -> None:
    kill_and_compare(make_case, kills=4, seed=5)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2])
def test_twenty_kills(make_case: MakeCase, seed: int) -> None:
    kill_and_compare(make_case, kills=20, seed=seed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_twenty_kills_and_orderly_ends_by_turns(make_case: MakeCase) -> None:
    kill_and_compare(make_case, kills=20, seed=3, numbers=(signal.SIGTERM, signal.SIGKILL))


def compare_shipped(make_case: MakeCase, experiment: str, kills: int) -> None:
    """Kills in the first saves, which are those of a source where the experiment has one."""
    arguments = (f"+experiment={experiment}", *SHIPPED[experiment], "tracking.close_seconds=60")
    twin, victim = make_case("twin", *arguments), make_case("victim", *arguments)
    assert twin.run() == 0, twin.output()
    for index in range(kills):
        kill(victim, SAVING, 0.03 * index)
    assert victim.run() == 0, victim.output()
    assert_same(twin, victim, experiment)


def test_a_shipped_experiment_is_resumed_exactly(make_case: MakeCase) -> None:
    compare_shipped(make_case, "digits_cnn", kills=2)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("experiment", list(SHIPPED))
def test_every_shipped_experiment_is_resumed_exactly(make_case: MakeCase, experiment: str) -> None:
    compare_shipped(make_case, experiment, kills=8)
