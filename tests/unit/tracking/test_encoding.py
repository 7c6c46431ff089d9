from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from runner.tracking.records import (
    Artifact,
    Entry,
    MetricPoint,
    Metrics,
    Parameter,
    Parameters,
    Record,
    Tag,
    Tags,
    Text,
)

from runner.tracking.encoding import Encoder, encode_tag


def encode(*records: Record, encoder: Encoder | None = None) -> list[Entry]:
    return list((encoder or Encoder({}, {})).encode(records))


def test_metrics_become_points_with_encoded_names() -> None:
    assert encode(Metrics({"f(1)": 1, "loss": cast(float, np.float32(0.5))}, 7, 99)) == [
        MetricPoint("f_x0028_1_x0029_", 1.0, 99, 7),
        MetricPoint("loss", 0.5, 99, 7),
    ]


def test_nan_is_kept() -> None:
    (point,) = encode(Metrics({"loss": math.nan}, 1, 0))
    assert isinstance(point, MetricPoint)
    assert math.isnan(point.value)


def test_metrics_that_were_infinite_are_named_once() -> None:
    encoder = Encoder({}, {})
    first = encode(Metrics({"loss": math.inf, "gain": -math.inf}, 1, 0), encoder=encoder)
    again = encode(Metrics({"loss": math.inf}, 2, 0), encoder=encoder)
    assert [entry for entry in first if isinstance(entry, Tag)] == [
        Tag("runner.infinite_metrics", "loss"),
        Tag("runner.infinite_metrics", "loss\ngain"),
    ]
    assert again == [MetricPoint("loss", math.inf, 0, 2)]


@pytest.mark.parametrize("value", ["high", None, np.zeros(2), 10**400])
def test_a_metric_that_is_no_number_is_left_out_and_named(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    entries = encode(Metrics({"bad": value, "good": 1.0}, 1, 0))
    assert entries == [Tag("runner.metrics_refused", "bad"), MetricPoint("good", 1.0, 0, 1)]
    assert "Metric 'bad' has a value that is no number" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


def test_parameters_become_text() -> None:
    values = {"rate": 0.1, "goal": None, "flag": True, "surrogate": "\ud800"}
    assert encode(Parameters(values)) == [
        Parameter("rate", "0.1"),
        Parameter("goal", "None"),
        Parameter("flag", "True"),
        Parameter("surrogate", "\\ud800"),
    ]


def test_long_parameters_are_shortened_and_named() -> None:
    note, parameter = encode(Parameters({"f(x)": "v" * 6001}))
    assert note == Tag("runner.parameters_shortened", "f(x)")
    assert isinstance(parameter, Parameter)
    assert len(parameter.value) == 6000
    assert "[6001 characters, sha256 " in parameter.value
    assert encode(Parameters({"fits": "v" * 6000})) == [Parameter("fits", "v" * 6000)]


def test_parameters_that_the_run_has_are_not_sent_again() -> None:
    encoder = Encoder({"a": "1", "f_x0028_x_x0029_": "2"}, {})
    assert encode(Parameters({"a": 1, "f(x)": 2, "new": 3}), encoder=encoder) == [
        Parameter("new", "3")
    ]
    assert encode(Parameters({"new": 3}), encoder=encoder) == []


def test_parameters_that_changed_are_noted_with_both_values() -> None:
    encoder = Encoder({"steps": "10"}, {"runner.parameters_changed": "rate: 1 -> 2"})
    assert encode(Parameters({"steps": 20}), encoder=encoder) == [
        Tag("runner.parameters_changed", "rate: 1 -> 2\nsteps: 10 -> 20")
    ]


def test_long_values_that_changed_past_the_limit_are_seen_to_differ() -> None:
    encoder = Encoder({}, {})
    encode(Parameters({"a": "v" * 7000 + "1"}), encoder=encoder)
    (note,) = encode(Parameters({"a": "v" * 7000 + "2"}), encoder=encoder)
    assert isinstance(note, Tag)
    assert note.key == "runner.parameters_changed"
    assert len(note.value) < 500


def test_long_tags_are_shortened_and_named() -> None:
    note, tag = encode(Tags({"overrides": "v" * 8001}))
    assert note == Tag("runner.tags_shortened", "overrides")
    assert tag == encode_tag("overrides", "v" * 8001)
    assert isinstance(tag, Tag)
    assert len(tag.value) == 8000


@pytest.mark.parametrize(
    "record",
    [Metrics({"k" * 251: 1.0}, 1, 0), Parameters({"k" * 251: 1}), Tags({"k" * 251: "1"})],
    ids=["metric", "parameter", "tag"],
)
def test_long_names_are_shortened_and_named(record: Record) -> None:
    note, entry = encode(record)
    assert note == Tag("runner.keys_shortened", "k" * 251)
    assert isinstance(entry, MetricPoint | Parameter | Tag)
    assert len(entry.key) == 250


def test_a_note_keeps_within_the_limit_of_a_tag() -> None:
    values = {f"p{index}": "v" * 6001 for index in range(2000)}
    notes = [entry for entry in encode(Parameters(values)) if isinstance(entry, Tag)]
    assert max(len(note.value) for note in notes) == 8000


def test_artifacts_pass_and_text_is_cleaned() -> None:
    artifact = Artifact(Path("plan.txt"), "plans")
    assert encode(artifact, Text("a\x00", "b.txt")) == [artifact, Text("a\\x00", "b.txt")]
