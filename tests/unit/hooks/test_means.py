"""Means of training metrics between evaluations, in runs that are resumed too."""

from __future__ import annotations

from runner.hooks.metrics import TrainingMeans

HISTORY = {
    5: {"train/loss": 4.0, "steps_per_sec": 9.0},
    10: {"train/loss": 2.0, "validation/loss": 3.0, "train_mean/loss": 3.0},
    12: {"steps_per_sec": 9.0},
    15: {"train/loss": 1.0},
    20: {"train/loss": 0.5},
    25: {"train/loss": 0.25},
}


def test_a_mean_is_of_the_recorded_steps_since_it_was_taken() -> None:
    means = TrainingMeans(["loss"], dict)
    for loss in (4.0, 2.0):
        means.add({"loss": loss, "learning_rate": 1.0})
    assert means.take() == {"loss": 3.0}
    assert means.take() == {}


def test_a_resumed_run_continues_from_what_was_recorded_since_the_last_evaluation() -> None:
    means = TrainingMeans(["loss"], lambda: HISTORY)
    means.add({"loss": 100.0})
    means.rewind(20)
    assert means.take() == {"loss": 0.75}
    means.rewind(10)
    assert means.take() == {}


def test_without_metrics_the_history_is_not_read() -> None:
    def fails() -> dict[int, dict[str, float]]:
        raise AssertionError

    means = TrainingMeans([], fails)
    means.rewind(20)
    means.add({"loss": 1.0})
    assert means.take() == {}
