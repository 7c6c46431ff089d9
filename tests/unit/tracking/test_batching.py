from __future__ import annotations

from pathlib import Path

from runner.tracking.records import (
    Artifact,
    Batch,
    Entry,
    MetricPoint,
    Parameter,
    Tag,
    Text,
    batches,
)


def test_batches_keep_within_every_limit_and_lose_nothing() -> None:
    metrics = [MetricPoint("loss", 0.0, 0, step) for step in range(2500)]
    parameters = [Parameter(f"p{index}", "1") for index in range(250)]
    tags = [Tag(f"t{index}", "1") for index in range(150)]
    found = [batch for batch in batches([*tags, *metrics, *parameters]) if isinstance(batch, Batch)]
    assert all(
        len(batch) <= 1000 and len(batch.parameters) <= 100 and len(batch.tags) <= 100
        for batch in found
    )
    assert [entry for batch in found for entry in batch.metrics] == metrics
    assert [entry for batch in found for entry in batch.parameters] == parameters
    assert [entry for batch in found for entry in batch.tags] == tags
    assert [len(batch) for batch in found] == [100, 1000, 1000, 650, 100, 50]


def test_artifacts_keep_their_place_among_the_rest() -> None:
    point, artifact, text = MetricPoint("m", 1.0, 0, 1), Artifact(Path("a")), Text("t", "b")
    entries: list[Entry] = [point, artifact, text, point]
    assert list(batches(entries)) == [Batch((point,)), artifact, text, Batch((point,))]


def test_the_last_value_of_a_tag_wins() -> None:
    assert list(batches([Tag("t", "1"), Tag("u", "1"), Tag("t", "2")])) == [
        Batch(tags=(Tag("t", "2"), Tag("u", "1")))
    ]


def test_nothing_makes_no_batch() -> None:
    assert list(batches([])) == []
