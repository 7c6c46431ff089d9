"""Addresses are read, and looked at from outside."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from runner.config.cluster_spec import (
    answers,
    free_addresses,
    in_use,
    not_answering,
    place,
    split,
    wait_until_answering,
)
from runner.errors import ClusterError


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


def test_spellings_of_one_address_are_known() -> None:
    same = ["localhost:80", "LOCALHOST:80", "127.0.0.1:80", "127.0.1.1:80", "[::1]:80"]
    assert len(set(map(place, same))) == 1
    assert place("[2001:db8:0::1]:80") == place("[2001:DB8::1]:80")
    others = ["localhost:81", "10.0.0.1:80", "host:80", "b"]
    assert len({place(each) for each in [*same, *others]}) == 5


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


def test_what_is_no_address_neither_answers_nor_is_in_use() -> None:
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
