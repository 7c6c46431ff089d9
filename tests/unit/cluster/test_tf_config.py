"""`TF_CONFIG` is read in its documented form, and every deviation is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.config.cluster_spec import LOCAL, read_tf_config, write_tf_config
from runner.errors import ConfigError

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def read(content: Any) -> Any:
    text = content if isinstance(content, str) else json.dumps(content)
    return read_tf_config({"TF_CONFIG": text})


def states(content: Any) -> list[str]:
    with pytest.raises(ConfigError) as error:
        read(content)
    return [problem.state for problem in error.value.problems]


def test_the_documented_form_is_read() -> None:
    found = read({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}})
    assert found.addresses == {kind: tuple(hosts) for kind, hosts in CLUSTER.items()}
    assert (found.task_type, found.task_index, found.environment) == ("worker", 1, "")


@pytest.mark.parametrize("text", ["", "  ", "{}", '{"cluster": {}}'])
def test_no_cluster_is_none(text: str) -> None:
    assert read(text) is None
    assert read_tf_config({}) is None


def test_what_operators_add_is_accepted() -> None:
    found = read(
        {
            "cluster": {"master": ["a:1"], "ps": ["d:1"], "evaluator": ["e:1"]},
            "task": {"type": "master", "index": "0"},
            "environment": "cloud",
        }
    )
    assert found.addresses == {"chief": ("a:1",), "ps": ("d:1",)}
    assert (found.task_type, found.task_index, found.environment) == ("chief", 0, "cloud")
    assert found.evaluators == ("e:1",)


def test_what_is_written_is_read_again() -> None:
    text = write_tf_config({"chief": ("a:1",), "ps": ("b:1",)}, "ps", 0)
    found = read(text)
    assert found.addresses == {"chief": ("a:1",), "ps": ("b:1",)}
    assert (found.task_type, found.task_index, found.environment) == ("ps", 0, LOCAL)


def test_text_that_is_no_json_is_refused() -> None:
    assert states("{chief}") == ["TF_CONFIG is '{chief}'"]


def test_json_that_is_no_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="it is not a JSON object"):
        read("[1]")


def test_every_mistake_is_told_at_once() -> None:
    cluster = {"chief": ["a:1"], "master": ["b:1"], "wroker": ["c:1"], "ps": "d:1"}
    assert states({"cluster": cluster, "task": {"type": "ps", "index": "first"}}) == [
        "TF_CONFIG: cluster has a master and a chief",
        "TF_CONFIG: cluster has tasks of type 'wroker'",
        "TF_CONFIG: cluster.ps is 'd:1'",
        "TF_CONFIG: task.index is 'first'",
    ]


def test_a_misspelt_type_is_told_with_the_nearest_first() -> None:
    with pytest.raises(ConfigError) as error:
        read({"cluster": {"wroker": ["a:1"]}, "task": {"type": "worker"}})
    assert error.value.problems[0].choices[0] == "worker"


def test_a_cluster_that_is_no_object_and_a_missing_task_are_refused() -> None:
    assert states({"cluster": ["a:1"]}) == [
        "TF_CONFIG: cluster is ['a:1']",
        "TF_CONFIG names no task",
    ]


@pytest.mark.parametrize("extra", [{}, {"chief": []}])
@pytest.mark.parametrize(
    ("given", "task"),
    [
        (("worker", 0), ("chief", 0)),
        (("worker", 1), ("worker", 0)),
        (("worker", "2"), ("worker", 1)),
        (("ps", 0), ("ps", 0)),
        (("evaluator", 0), ("evaluator", 0)),
    ],
)
def test_without_a_chief_the_first_worker_is_it(
    given: tuple[str, Any], task: tuple[str, int], extra: dict[str, Any]
) -> None:
    cluster = {"worker": ["a:1", "b:1", "c:1"], "ps": ["d:1"], **extra}
    found = read({"cluster": cluster, "task": {"type": given[0], "index": given[1]}})
    assert found.addresses == {"chief": ("a:1",), "worker": ("b:1", "c:1"), "ps": ("d:1",)}
    assert (found.task_type, found.task_index) == task


def test_half_a_task_is_refused() -> None:
    assert states({"cluster": CLUSTER, "task": {"type": "worker", "index": 0.9}}) == [
        "TF_CONFIG: task.index is 0.9"
    ]


def test_an_index_out_of_range_is_told_in_the_numbers_of_the_variable() -> None:
    cluster = {"worker": ["a:1", "b:1"], "evaluator": ["e:1"]}
    assert states({"cluster": cluster, "task": {"type": "worker", "index": 2}}) == [
        "TF_CONFIG: this task is worker 2, and there are 2 of that type"
    ]
    assert states({"cluster": cluster, "task": {"type": "evaluator", "index": 1}}) == [
        "TF_CONFIG: this task is evaluator 1, and there is 1 of that type"
    ]


def test_two_evaluators_are_refused() -> None:
    cluster = {"chief": ["a:1"], "evaluator": ["e:1", "f:1"]}
    assert states({"cluster": cluster, "task": {"type": "chief"}}) == [
        "TF_CONFIG: there are 2 evaluators"
    ]
