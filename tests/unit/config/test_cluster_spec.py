"""`TF_CONFIG` is read in its documented form; tasks have names, places and addresses."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from runner.config.choices import Mode
from runner.config.cluster_spec import (
    LOCAL,
    addresses_by_type,
    announcing_tasks,
    answers,
    free_addresses,
    has_addresses,
    in_use,
    is_cluster,
    is_task,
    launches,
    not_answering,
    own_name,
    parameter_servers,
    read_tf_config,
    replica_index,
    split,
    trainers,
    wait_until_answering,
    write_tf_config,
)
from runner.config.schema import AddressesConfig, ClusterConfig, TaskConfig
from runner.errors import ClusterError, ConfigError
from tests.tiny.configs import tiny

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
    assert found.addresses == {"chief": ("a:1",), "ps": ("d:1",)}
    assert (found.task_type, found.task_index, found.environment) == ("chief", 0, "cloud")
    assert found.evaluators == ("e:1",)


HOSTS = st.lists(st.from_regex(r"[a-z][a-z0-9.-]{0,8}:[1-9][0-9]{0,3}", fullmatch=True), max_size=3)


@drawn(
    chief=HOSTS.filter(bool),
    worker=HOSTS,
    ps=HOSTS,
    kind=st.sampled_from(["chief", "worker", "ps"]),
    index=st.integers(0, 5),
)
def test_what_is_written_is_read_again(
    chief: list[str], worker: list[str], ps: list[str], kind: str, index: int
) -> None:
    addresses = {"chief": tuple(chief[:1]), "worker": tuple(worker), "ps": tuple(ps)}
    found = read(write_tf_config(addresses, kind, index))
    assert found.addresses == addresses
    assert (found.task_type, found.task_index, found.environment) == (kind, index, LOCAL)


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
    assert found is None or found.addresses


def test_a_string_that_is_not_json_is_refused() -> None:
    assert states("{chief}") == ["TF_CONFIG is '{chief}'"]


def test_json_that_is_not_an_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="it is not a JSON object"):
        read("[1]")


def test_every_mistake_is_reported_at_once() -> None:
    cluster = {"chief": ["a:1"], "master": ["b:1"], "wroker": ["c:1"], "ps": "d:1"}
    assert states({"cluster": cluster, "task": {"type": "ps", "index": "first"}}) == [
        "TF_CONFIG: cluster has a master and a chief",
        "TF_CONFIG: cluster has tasks of type 'wroker'",
        "TF_CONFIG: cluster.ps is 'd:1'",
        "TF_CONFIG: task.index is 'first'",
    ]


def test_a_misspelt_type_is_reported_with_the_nearest_first() -> None:
    with pytest.raises(ConfigError) as error:
        read({"cluster": {"wroker": ["a:1"]}, "task": {"type": "worker"}})
    assert error.value.problems[0].choices[0] == "worker"


def test_a_cluster_that_is_not_an_object_and_a_missing_task_are_refused() -> None:
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


def test_an_index_out_of_range_is_reported_in_the_numbers_of_the_variable() -> None:
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


def cluster(kind: str | None = None, index: int = 0) -> ClusterConfig:
    addresses = AddressesConfig(["a:1"], ["b:1", "c:1"], ["d:1"])
    return ClusterConfig(addresses=addresses, task=TaskConfig(kind, index), evaluator=True)


def test_tasks_are_listed_with_their_addresses() -> None:
    assert trainers(cluster()) == {"chief": "a:1", "worker 0": "b:1", "worker 1": "c:1"}
    assert parameter_servers(cluster()) == {"ps 0": "d:1"}
    assert addresses_by_type(cluster())["worker"] == ["b:1", "c:1"]
    assert addresses_by_type(ClusterConfig()) == {}
    assert announcing_tasks(cluster()) == ["worker0", "worker1", "evaluator"]


def test_a_task_knows_its_name_and_its_place() -> None:
    assert own_name(cluster("worker", 1)) == "worker1"
    assert own_name(cluster("evaluator", 5)) == "evaluator"
    assert [replica_index(cluster(kind, 1)) for kind in ("chief", "worker")] == [0, 2]


def test_what_a_process_is() -> None:
    local = ClusterConfig(local=True)
    assert (is_cluster(local), has_addresses(local), is_task(local)) == (True, False, False)
    assert not is_cluster(ClusterConfig())
    assert is_task(cluster("ps"))
    assert is_task(cluster("ps"), "ps", "worker")
    assert not is_task(cluster("ps"), "chief")
    assert not is_task(cluster())
    assert launches(tiny(cluster=local))
    assert not launches(tiny(cluster=local, mode=Mode.plan))
    assert not launches(tiny(cluster=cluster("chief")))


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("host:2222", ("host", 2222)),
        ("[::1]:80", ("::1", 80)),
        ("host", None),
        (":80", None),
        ("host:", None),
        ("host:0", None),
        ("host:65536", None),
        ("host:port", None),
        ("my_host-1.lan:80", ("my_host-1.lan", 80)),
        ("http://localhost:80", None),
        ("local host:80", None),
        ("::1:80", None),
    ],
)
def test_an_address_is_a_host_and_a_port(address: str, parts: tuple[str, int] | None) -> None:
    assert split(address) == parts


def test_a_port_with_a_listener_is_in_use_and_answers(listening: str) -> None:
    assert in_use(listening)
    assert answers(listening)


def test_free_addresses_differ_and_are_free() -> None:
    found = free_addresses(3)
    assert len(set(found)) == 3
    assert not any(in_use(each) or answers(each) for each in found)


def test_only_a_port_that_is_taken_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(socket.socket):
        def bind(self, address: Any) -> None:
            raise PermissionError(errno.EACCES, "only root may")

    monkeypatch.setattr(socket, "socket", Refused)
    assert not in_use("host:80")


def test_a_malformed_address_neither_answers_nor_is_in_use() -> None:
    assert not in_use("host")
    assert not answers("host")


def test_waiting_ends_when_all_answer(listening: str) -> None:
    wait_until_answering({"ps 0": listening}, 0.0, 1.0)


def test_waiting_names_those_that_do_not_answer(listening: str) -> None:
    (address,) = free_addresses(1)
    now = [0.0]
    slept = []
    said: list[str] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    with pytest.raises(ClusterError, match=f"^ps 1 at {address} does not answer"):
        wait_until_answering(
            {"ps 0": listening, "ps 1": address},
            3.0,
            1.0,
            say=said.append,
            clock=lambda: now[0],
            sleep=sleep,
        )
    assert slept == [1.0, 1.0, 1.0]
    assert said == [f"waits for ps 1 at {address}, 3 s at most"]


def test_several_that_do_not_answer_are_one_problem() -> None:
    problem = not_answering({"ps 0": "a:1", "ps 1": "b:1"}, ["ps 0", "ps 1"], 60.0)
    assert problem.state == "ps 0 at a:1, ps 1 at b:1 do not answer"
    assert problem.cause == (
        "waited for 60 s (cluster.max_wait_secs); not started, not reachable, or the run has ended"
    )
