"""`TF_CONFIG` is read in its documented form; tasks have names, places and addresses."""

from __future__ import annotations

import errno
import json
import socket
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from runner.config.cluster_spec import (
    Addresses,
    Cluster,
    Task,
    addresses_by_type,
    announced_name,
    announcing_tasks,
    in_use,
    parameter_servers,
    read_tf_config,
    replica_index,
    split,
    trainers,
    write_tf_config,
)
from runner.errors import ConfigError

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def read(content: Any) -> Any:
    text = content if isinstance(content, str) else json.dumps(content)
    return read_tf_config({"TF_CONFIG": text})


@pytest.mark.parametrize(
    "text", ["", "  ", "{}", '{"cluster": {}}', '{"task": {"type": "worker", "index": "0"}}']
)
def test_a_variable_without_cluster_is_ignored(text: str) -> None:
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
    assert found == Cluster(
        addresses=Addresses(["a:1"], [], ["d:1"]), task=Task("chief", 0), evaluator=True
    )


ADDRESS = st.builds("{}:{}".format, st.sampled_from(["a", "b-1.lan", "10.0.0.1"]), st.integers(1))
HOSTS = st.lists(ADDRESS, max_size=3)


@drawn(chief=HOSTS.filter(bool), worker=HOSTS, ps=HOSTS, kind=st.sampled_from(["worker", "ps"]))
def test_what_is_written_is_read_again(
    chief: list[str], worker: list[str], ps: list[str], kind: str
) -> None:
    addresses = {"chief": chief[:1], "worker": worker, "ps": ps}
    index = max(0, len(addresses[kind]) - 1)
    hosts = {each: tuple(given) for each, given in addresses.items()}
    assert read(write_tf_config(hosts, kind, index)) == Cluster(
        local=True, addresses=Addresses(**addresses), task=Task(kind, index)
    )


KEYS = st.sampled_from(["cluster", "task", "type", "index", "worker", "chief"])
JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda each: st.lists(each) | st.dictionaries(KEYS, each),
)


@drawn(JSON)
def test_any_json_is_read_or_refused(content: Any) -> None:
    try:
        found = read(json.dumps(content))
    except ConfigError:
        return
    assert found is None or found.task.type


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[1]", ["TF_CONFIG is '[1]'"]),
        ({"cluster": None}, ["TF_CONFIG: cluster is None"]),
        ({"cluster": []}, ["TF_CONFIG: cluster is []"]),
        ({"task": ["ps", 0]}, ['TF_CONFIG names the task ["ps", 0], but no cluster']),
        (
            {"cluster": {}, "task": {"type": "ps"}},
            ['TF_CONFIG names the task {"type": "ps"}, but no cluster'],
        ),
        (
            {"task": {"type": "worker", "index": 1}},
            ['TF_CONFIG names the task {"type": "worker", "index": 1}, but no cluster'],
        ),
        ({"cluster": ["a:1"]}, ["TF_CONFIG: cluster is ['a:1']"]),
        (
            {"cluster": {"chief": ["a:1"], "ps": "d:1"}, "task": {"type": "ps", "index": 0.9}},
            [
                "TF_CONFIG: cluster.ps is 'd:1'",
                "TF_CONFIG: task.index is 0.9",
            ],
        ),
        (
            {"cluster": {"chief": ["a:1"], "evaluator": ["e:1", "f:1"]}, "task": {"type": "chief"}},
            ["TF_CONFIG: there are 2 evaluators"],
        ),
        (
            {"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 1}},
            ["TF_CONFIG: this task is evaluator 1"],
        ),
        (
            {"cluster": {"chief": ["a:1"], "evaluator": "e:1"}, "task": {"type": "chief"}},
            ["TF_CONFIG: cluster.evaluator is 'e:1'"],
        ),
        (
            {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker"}},
            ["TF_CONFIG: task.index is missing"],
        ),
        (
            {"cluster": {"chief": ["a:1"], "master": ["b:1"]}, "task": {"type": "chief"}},
            ["TF_CONFIG names a chief and a master"],
        ),
        ({"cluster": {"chief": ["a:1"]}}, ["TF_CONFIG names no task"]),
        ({"cluster": {"chief": ["a:1"]}, "task": {"index": 0}}, ["TF_CONFIG names no task"]),
    ],
    ids=str,
)
def test_all_that_is_not_in_the_documented_form_is_reported(
    content: Any, expected: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        read(content)
    assert [problem.state for problem in error.value.problems] == expected


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
    assert found.addresses == Addresses(["a:1"], ["b:1", "c:1"], ["d:1"])
    assert found.task == Task(*task)


def cluster(kind: str = "chief", index: int = 0) -> Cluster:
    addresses = Addresses(["a:1"], ["b:1", "c:1"], ["d:1"])
    return Cluster(addresses=addresses, task=Task(kind, index), evaluator=True)


def test_tasks_have_names_places_and_addresses() -> None:
    assert trainers(cluster()) == {"chief": "a:1", "worker 0": "b:1", "worker 1": "c:1"}
    assert parameter_servers(cluster()) == {"ps 0": "d:1"}
    assert addresses_by_type(cluster())["worker"] == ["b:1", "c:1"]
    assert announcing_tasks(cluster()) == ["worker0", "worker1", "evaluator"]
    assert announced_name(cluster("worker", 1)) == "worker1"
    assert announced_name(cluster("evaluator", 5)) == "evaluator"
    assert [replica_index(cluster(kind, 1)) for kind in ("chief", "worker")] == [0, 2]


def test_an_address_is_a_host_and_a_port() -> None:
    assert split("host:2222") == ("host", 2222)
    assert split("my_host-1.lan:80") == ("my_host-1.lan", 80)
    assert split("[::1]:80") == ("::1", 80)
    for refused in ("host", ":80", "host:", "host:port", "local host:80", "http://a:80", "::1:80"):
        assert split(refused) is None
    assert (split("host:0"), split("host:65536")) == (None, None)


def test_only_a_port_that_is_taken_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(socket.socket):
        def bind(self, address: Any) -> None:
            raise PermissionError(errno.EACCES, "only root may")

    monkeypatch.setattr(socket, "socket", Refused)
    assert not in_use("host:80")
