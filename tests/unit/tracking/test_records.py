from __future__ import annotations

from pathlib import Path

import pytest
from runner.tracking.records import (
    Artifact,
    Batch,
    Dataset,
    Delivery,
    MetricPoint,
    Parameter,
    Tag,
    Text,
    named,
    summary,
)

POINTS = tuple(MetricPoint("loss", float(step), 0, step) for step in range(3))
PARAMETERS = (Parameter("a", "1"), Parameter("b", "2"))
TAGS = (Tag("t", "1"), Tag("u", "2"))


@pytest.mark.parametrize("metrics", range(4))
@pytest.mark.parametrize("parameters", range(3))
@pytest.mark.parametrize("tags", range(3))
def test_halves_hold_everything_once(metrics: int, parameters: int, tags: int) -> None:
    batch = Batch(POINTS[:metrics], PARAMETERS[:parameters], TAGS[:tags])
    first, second = batch.halves()
    assert (len(first), len(second)) == (len(batch) // 2, len(batch) - len(batch) // 2)
    assert first.metrics + second.metrics == batch.metrics
    assert first.parameters + second.parameters == batch.parameters
    assert first.tags + second.tags == batch.tags


def test_a_summary_counts_what_waits() -> None:
    items: list[Delivery] = [
        Batch(POINTS * 400, PARAMETERS[:1]),
        Batch(POINTS[:2], PARAMETERS[1:], TAGS[:1]),
        Dataset("digits", "abc"),
        Artifact(Path("run/plan.txt")),
        Text("text", "reports/plan.txt"),
    ]
    assert summary(items) == (
        "1,202 metric values, 2 parameters, 1 tag, data set digits, artifact plan.txt,"
        " artifact reports/plan.txt"
    )
    assert summary([]) == ""


def test_deliveries_are_called_by_the_names_they_hold() -> None:
    batch = Batch(POINTS[:1], PARAMETERS[:1], TAGS[:1])
    assert named(batch) == "metric 'loss', parameter 'a', tag 't'"
    assert named(Artifact(Path("run/plan.txt"))) == "artifact plan.txt"
