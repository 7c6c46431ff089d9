"""The loss of a server is told as such."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from runner.cluster.server import ClusterSession, cluster_session, telling_losses
from runner.session.cached_session import CachedSession

# Of a run with a server that was killed and started again.
LOST = """Graph execution error:

=====================
CANCELLED: From /job:chief/replica:0/task:0:
RecvFromRemoteAsync is cancelled.
\t [[{{node fifo_queue_DequeueMany_S247}}]]
ABORTED: From /job:ps/replica:0/task:0:
Session handle is not found: ca2d1c. Possibly this worker just restarted.
====================="""


@pytest.fixture
def session() -> Iterator[Any]:
    with tf.Graph().as_default(), CachedSession() as made:
        yield cluster_session(made)


def test_a_step_that_a_lost_server_cancels_is_aborted(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(self: Any, fetches: Any) -> None:
        raise tf.errors.CancelledError(None, None, LOST)

    two = tf.constant(1) + 1
    assert isinstance(session, ClusterSession)
    assert session.run(two) == 2
    monkeypatch.setattr(CachedSession, "run", lose)
    with pytest.raises(tf.errors.AbortedError, match="Possibly this worker just restarted"):
        session.run(two)


def test_a_step_that_is_cancelled_for_another_reason_is_not() -> None:
    with pytest.raises(tf.errors.CancelledError, match="explicit call"), telling_losses():
        raise tf.errors.CancelledError(None, None, "Step was cancelled by an explicit call")
    own = LOST.replace("/job:ps/", "/job:worker/")
    with pytest.raises(tf.errors.CancelledError), telling_losses():
        raise tf.errors.CancelledError(None, None, own)
