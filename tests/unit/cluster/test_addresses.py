"""Which tasks answer at their addresses, and how long it is waited for them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from runner.cluster.addresses import (
    answers,
    free_addresses,
    not_answering,
    wait_until_answering,
)
from runner.config.cluster_spec import in_use
from runner.errors import ClusterError


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_only_an_address_with_a_listener_answers(listening: str) -> None:
    assert in_use(listening)
    assert answers(listening)
    found = free_addresses(3)
    assert len(set(found)) == 3
    assert not any(in_use(each) or answers(each) for each in [*found, "malformed"])


def test_waiting_names_those_that_do_not_answer(listening: str) -> None:
    wait_until_answering({"ps 0": listening}, 0.0, 1.0)
    (address,) = free_addresses(1)
    slept: list[float] = []
    said: list[str] = []
    with pytest.raises(ClusterError, match=f"^ps 1 at {address} does not answer"):
        wait_until_answering(
            {"ps 0": listening, "ps 1": address},
            3.0,
            1.0,
            say=said.append,
            clock=lambda: sum(slept),
            sleep=slept.append,
        )
    assert slept == [1.0, 1.0, 1.0]
    assert said == [f"waits for ps 1 at {address}, 3 s at most"]


def test_several_that_do_not_answer_are_one_problem() -> None:
    problem = not_answering({"ps 0": "a:1", "ps 1": "b:1"}, ["ps 0", "ps 1"], 60.0)
    assert problem.state == "ps 0 at a:1, ps 1 at b:1 do not answer"
    assert "waited for 60 s (cluster.max_wait_secs)" in problem.cause
