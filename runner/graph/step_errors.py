"""Errors of traced steps, with the frames of the user's code that they come from."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from runner.config.schema import RunConfig
from runner.graph.calls import Calls
from runner.graph.traces import Imported, Trace

class StepErrors(Calls):
    """Explains the errors of imported traces by the operations that the user's code made."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._imported: list[tuple[Imported, Trace]] = []

    def add(self, imported: Imported, trace: Trace) -> None:
        """Adds a trace of the session's graph."""
        self._imported.append((imported, trace))
        self._graphs += trace.graphs()

    def _operations(self, node: str) -> Iterator[tf.Operation]:
        for imported, _ in self._imported:
            if node.startswith(imported.prefix):
                yield from super()._operations(node.removeprefix(imported.prefix))
        yield from super()._operations(node)
