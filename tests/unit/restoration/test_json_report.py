"""The plan and the provenance of variables as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.config.choices import Collision
from runner.restoration.fitting import SourceTensor
from runner.restoration.json_report import SCHEMA, json_text, plan_document, provenance_document
from runner.restoration.plan import Assignment, RestorationPlan
from runner.restoration.variables import Partition
from runner.runs.provenance import Origin, chain
from tests.tiny.plans import checkpoint, plan, scaffold, variable


def example() -> Any:
    made = plan(
        [
            variable("ä/k", (3, 2)),
            variable("emb/part_0", (1, 2), partition=Partition("emb", (2, 2), (0, 0))),
            variable("b"),
        ],
        {
            "net": scaffold(
                "ä/*", "emb", freeze_until_step=5, transpose={"ä/k": [1, 0]}, finite=True
            ),
            "none": scaffold("b", "nothing"),
        },
        {
            "net": checkpoint(
                "ä/k", shapes={"emb": (2, 2), "c": (4,)}, format="bundle", digest="x:1"
            ),
            "none": None,
        },
    )
    text = json_text(made)
    assert text.isascii()
    assert text.endswith("}\n")
    parsed = json.loads(text)
    assert parsed == plan_document(made)
    return parsed


def test_the_keys_of_the_whole_and_of_a_source() -> None:
    parsed = example()
    assert [*parsed] == ["schema", "sound", "problems", "notes", "sources", "unusable", "variables"]
    assert parsed["schema"] == SCHEMA == 1
    assert parsed["sound"] is False
    (problem,) = parsed["problems"]
    assert list(problem) == ["state", "cause", "remedy", "choices"]
    assert parsed["sources"] == {
        "net": {
            "path": "ckpt/model",
            "format": "bundle",
            "digest": "x:1",
            "step": 7,
            "tensors": 3,
            "bytes": 24 + 16 + 16,
            "unused": ["c"],
            "finite": True,
            "restored": 2,
            "restored_bytes": 24 + 8,
        },
        "none": None,
    }


def test_a_variable() -> None:
    first, part, last = example()["variables"]
    assert first == {
        "name": "ä/k",
        "shape": [3, 2],
        "dtype": "float32",
        "state": "weight",
        "bytes": 24,
        "scaffold": "net",
        "origin": "checkpoint",
        "initializer": "Const",
        "pieces": [
            {
                "source": "net",
                "tensors": [{"name": "ä/k", "shape": [2, 3], "dtype": "float32"}],
                "conversions": ["transposed (1, 0)"],
            }
        ],
        "notes": [],
        "trainable": True,
        "frozen": False,
        "freeze_until_step": 5,
        "learning_rate_multiplier": 1.0,
        "partition": None,
    }
    assert part["partition"] == {"name": "emb", "shape": [2, 2], "offset": [0, 0]}
    assert (last["origin"], last["pieces"], last["scaffold"]) == ("initializer", [], "none")


def test_a_mean_has_several_pieces() -> None:
    made = plan(
        [variable("w")],
        {"a": scaffold(), "b": scaffold()},
        {"a": checkpoint("w"), "b": checkpoint("w")},
        Collision.mean,
    )
    (only,) = plan_document(made)["variables"]
    assert [each["source"] for each in only["pieces"]] == ["a", "b"]
    assert plan_document(made)["sound"] is True


def test_the_documented_keys_are_the_keys() -> None:
    documented = plan_document.__doc__ or ""
    parsed = example()
    for keys in (parsed, parsed["sources"]["net"], parsed["variables"][0], parsed["problems"][0]):
        for key in keys:
            assert f"`{key}`" in documented


RUN = {"experiment": "warm", "run_dir": "runs/warm/001", "tracking_uri": "db", "run_id": "r2"}
FIRST = {
    "schema": 1,
    "run": {"experiment": "cnn", "run_dir": "runs/cnn/001", "tracking_uri": "db", "run_id": "r1"},
    "sources": {},
    "variables": {"body/kernel": {"initializer": "Const"}},
}


def _made() -> RestorationPlan:
    return plan(
        [variable("body/kernel", (3, 2)), variable("head/kernel")],
        {"body": scaffold("body/*", transpose={"body/kernel": [1, 0]})},
        {"body": checkpoint("body/kernel", digest="sha256:ab")},
    )


def _origin(run_id: str = "r1") -> Origin:
    run = {**FIRST["run"], "run_id": run_id}  # type: ignore[dict-item]
    return Origin("experiment:cnn", "ckpt/model", 7, "sha256:ab", run, FIRST)


def test_every_variable_has_its_origin() -> None:
    found = provenance_document(_made(), RUN, {"body": (_origin(),)})
    assert json.loads(json.dumps(found)) == found
    assert found["run"] == RUN
    assert found["variables"] == {
        "body/kernel": {
            "pieces": [
                {
                    "source": "body",
                    "path": "ckpt/model",
                    "tensors": ["body/kernel"],
                    "step": 7,
                    "digest": "sha256:ab",
                    "run_id": "r1",
                    "conversions": ["transposed (1, 0)"],
                }
            ]
        },
        "head/kernel": {"initializer": "Const"},
    }


def test_it_holds_the_provenance_of_its_sources() -> None:
    (source,) = provenance_document(_made(), RUN, {"body": (_origin(),)})["sources"]["body"]
    assert source == {
        "checkpoint": "experiment:cnn",
        "path": "ckpt/model",
        "step": 7,
        "digest": "sha256:ab",
        "run": FIRST["run"],
        "provenance": FIRST,
    }


def test_an_average_of_several_runs_was_written_by_none_of_them() -> None:
    found = provenance_document(_made(), RUN, {"body": (_origin(), _origin("r0"))})
    assert found["variables"]["body/kernel"]["pieces"][0]["run_id"] is None
    assert [each["run"]["run_id"] for each in found["sources"]["body"]] == ["r1", "r0"]


def test_the_chain_goes_back_to_the_first_source() -> None:
    lines = list(chain(provenance_document(_made(), RUN, {"body": (_origin(),)})))
    assert lines == [
        "warm in runs/warm/001, MLflow run r2",
        "  body/kernel <- body: body/kernel @ step 7 (transposed (1, 0))",
        "  1 from initializers: head/kernel",
        "  body: ckpt/model sha256:ab, MLflow run r1",
        "    cnn in runs/cnn/001, MLflow run r1",
        "      1 from initializers: body/kernel",
    ]


def test_a_plan_that_restores_from_nowhere_is_refused() -> None:
    spec = checkpoint("a")
    piece = SourceTensor("body", spec.tensors["a"])
    broken = RestorationPlan((Assignment(variable("a"), "body", (piece,)),), {"body": None}, {})
    with pytest.raises(ValueError, match="restores from body, which has no checkpoint"):
        provenance_document(broken, RUN, {"body": ()})
