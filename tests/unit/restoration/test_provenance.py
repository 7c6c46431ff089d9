"""The provenance of variables, and the chain that it makes."""

from __future__ import annotations

import json

from runner.restoration.json_report import provenance_document
from runner.restoration.plan import RestorationPlan
from runner.runs.provenance import Origin, chain
from tests.tiny.plans import checkpoint, plan, scaffold, variable

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
    assert found["sources"]["body"] == [vars(_origin())]


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
