"""Whether a task has the settings of its chief, which leaves them on the first parameter server."""

from __future__ import annotations

import json
from dataclasses import asdict

import tensorflow as tf

from runner.cluster.channel import Text
from runner.config import RunConfig
from runner.errors import ClusterError, Problem
from runner.fingerprint import settings
from runner.tracking import Mask
from runner.tracking.flatten import flatten

# What of `cluster:` all tasks must have in common, besides the addresses.
_COMMON = ("synchronous", "backup", "placement", "partition_bytes", "workers", "ps")
# So many differences are told.
_SHOWN = 5


class Agreement:
    """What decides the result of a run, compared between its tasks."""

    def __init__(
        self, config: RunConfig, target: str, session_config: tf.compat.v1.ConfigProto
    ) -> None:
        """Stores its arguments.

        Args:
          config: the configuration, with its cluster resolved.
          target: where sessions are made that see the first parameter server.
          session_config: of these sessions.
        """
        self._config, self._target, self._session_config = config, target, session_config
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._text = Text("cluster_settings")

    def leave(self) -> None:
        """Leaves the chief's settings for the others."""
        with self._session() as session:
            self._text.leave(session, json.dumps(self._settings()))

    def check(self) -> None:
        """Compares the settings with those of the chief, once it has left them.

        Where the server does not answer, nothing is compared; a session that has variables on it
        finds out, too.

        Raises:
          ClusterError: naming what differs.
        """
        try:
            with self._session() as session:
                left = self._text.read(session)
        except (
            tf.errors.UnavailableError,
            tf.errors.AbortedError,
            tf.errors.DeadlineExceededError,
        ):
            return
        if left is None:
            return
        problem = _problem(self._config, self._settings(), json.loads(left))
        if problem is not None:
            raise ClusterError(problem)

    def _session(self) -> tf.compat.v1.Session:
        return tf.compat.v1.Session(self._target, self._graph, self._session_config)

    def _settings(self) -> dict[str, str]:
        """Returns dotted name -> value, as texts and without secrets."""
        config = self._config
        plain = settings(config, lambda scaffold: "")
        common = asdict(config.cluster)
        plain["cluster"] = {key: common[key] for key in _COMMON}
        shown = Mask(config.tracking.mask, asdict(config)).settings(plain)
        return {name: str(value) for name, value in flatten(shown).items()}


def _problem(config: RunConfig, own: dict[str, str], left: dict[str, str]) -> Problem | None:
    names = [name for name in sorted(own | left) if own.get(name) != left.get(name)]
    if not names:
        return None
    told = [
        f"{name} is {own.get(name, 'not set')} here and {left.get(name, 'not set')} there"
        for name in names[:_SHOWN]
    ]
    if len(names) > _SHOWN:
        told.append(f"{len(names) - _SHOWN} more")
    return Problem(
        f"this task has other settings than the chief: {'; '.join(told)}",
        "all tasks of a cluster train one model, in one way, on one set of data",
        "start this task by the command of the chief; or, where the chief is to have new settings, "
        "start the chief first",
    )
