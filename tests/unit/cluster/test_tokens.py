"""Each worker has tokens of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import tensorflow as tf

from runner.cluster.synchronous import Tokens
from tests.unit.cluster.conftest import InProcess

v1 = tf.compat.v1


@dataclass
class Worker:
    """What one worker can do; `tokens` is what is handed out."""

    session: Any
    tokens: Any
    take: Any
    drop: Any
    hand_out: Any
    wake_others: Any

    def give(self, *tokens: int) -> None:
        for token in tokens:
            self.session.run(self.hand_out, {self.tokens: [token]})

    def has_none(self) -> bool:
        options = v1.RunOptions(timeout_in_ms=500)
        with pytest.raises(tf.errors.DeadlineExceededError):
            self.session.run(self.take, options=options)
        return True


@contextmanager
def worker(servers: InProcess, index: int) -> Iterator[Worker]:
    kind = ("chief", "worker")[index]
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:0"):
            step = v1.train.get_or_create_global_step()
        given = v1.placeholder(tf.int64, [None])
        tokens = Tokens(step, 2, index)
        made = (given, tokens.take(), tokens.drop(), tokens.hand_out(given), tokens.wake_others())
        with v1.Session(servers.target(kind), graph) as session:
            session.run(step.initializer)
            yield Worker(session, *made)


@pytest.fixture
def two(in_process: Callable[..., InProcess]) -> Iterator[tuple[Worker, Worker]]:
    servers = in_process(2, 1)
    with worker(servers, 0) as chief, worker(servers, 1) as other:
        yield chief, other


def test_a_worker_takes_no_token_of_another(two: tuple[Worker, Worker]) -> None:
    chief, other = two
    chief.give(7)
    assert chief.session.run(chief.take) == 7
    assert chief.has_none()
    assert other.session.run(other.take) == 7


def test_a_worker_that_is_late_takes_all_and_goes_on_from_the_newest(
    two: tuple[Worker, Worker],
) -> None:
    chief, other = two
    chief.give(7, 8, 3)  # A chief that comes back may begin at an earlier step.
    assert other.session.run(other.take) == 3
    assert other.has_none()


def test_what_is_left_over_is_dropped(two: tuple[Worker, Worker]) -> None:
    chief, other = two
    other.session.run(other.drop)
    chief.give(7)
    other.session.run(other.drop)
    assert other.has_none()


def test_the_others_are_woken(two: tuple[Worker, Worker]) -> None:
    chief, other = two
    chief.session.run(chief.wake_others)
    assert other.session.run(other.take) == 0
    assert chief.has_none()
