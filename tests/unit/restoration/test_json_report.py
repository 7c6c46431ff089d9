"""The plan as JSON."""

from __future__ import annotations

import json
from typing import Any

from runner.config.choices import Collision
from runner.restoration.json_report import SCHEMA, document, json_text
from runner.restoration.variables import Partition
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
    assert parsed == document(made)
    return parsed


def test_the_whole() -> None:
    parsed = example()
    assert parsed["schema"] == SCHEMA == 1
    assert list(parsed)[:5] == ["schema", "sound", "problems", "notes", "sources"]
    assert list(parsed)[5:] == ["unusable", "variables"]
    assert parsed["sound"] is False
    (problem,) = parsed["problems"]
    assert (
        problem["state"] == "scaffolds.none.variables: 'nothing' matches no variable of the model"
    )
    assert list(problem) == ["state", "cause", "remedy", "choices"]


def test_a_source() -> None:
    assert example()["sources"] == {
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
    (only,) = document(made)["variables"]
    assert [each["source"] for each in only["pieces"]] == ["a", "b"]
    assert document(made)["sound"] is True


def test_the_documented_keys_are_the_keys() -> None:
    documented = document.__doc__ or ""
    parsed = example()
    for keys in (parsed, parsed["sources"]["net"], parsed["variables"][0], parsed["problems"][0]):
        for key in keys:
            assert f"`{key}`" in documented
