"""A Session that tells the loss of a server as such."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from runner.cluster_config import PS
from runner.session.cached_session import CachedSession

# Where several parts of a step fail, TensorFlow lists their errors so, and raises one of a kind
# that only the first of them has.
_LOST = re.compile(rf"^(?:ABORTED|UNAVAILABLE): From /job:{PS}/", re.MULTILINE)


class ClusterSession(CachedSession):
    """`CachedSession` that raises what a monitored session recovers from when a server is lost.

    TensorFlow may raise `CancelledError` of the part of the step on this machine, which was
    cancelled because of that.
    """

    def run(self, *arguments: Any, **options: Any) -> Any:
        """Runs a step; arguments and errors are those of `tf.compat.v1.Session.run`.

        Raises:
          tf.errors.AbortedError: also when a parameter server is lost, and the step cancelled.
        """
        with telling_losses():
            return super().run(*arguments, **options)


@contextmanager
def telling_losses() -> Iterator[None]:
    """Raises an `AbortedError` in place of a `CancelledError` of which a lost server is the cause.

    Raises:
      tf.errors.AbortedError: with the text of that error.
    """
    try:
        yield
    except tf.errors.CancelledError as error:
        if _LOST.search(str(error.message)) is None:
            raise
        raise tf.errors.AbortedError(error.node_def, error.op, error.message) from error


def cluster_session(session: tf.compat.v1.Session) -> tf.compat.v1.Session:
    """Makes a `ClusterSession` of a `CachedSession`, which stays the same object."""
    session.__class__ = ClusterSession
    return session
