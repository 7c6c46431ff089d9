"""Masks secrets in everything that the process prints: results, errors, logs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from runner.config.command import typed_arguments
from runner.config.masking import Mask, mask_of_command

# Of the command, and of the configurations that this process has run.
_masks: list[Mask] = []


def hide(mask: Mask) -> None:
    """Masks the secrets that `mask` knows, from now on."""
    # The trials of a sweep have the same.
    if not any(mask.known <= known.known for known in _masks[1:]):
        _masks.append(mask)


def masked(text: str) -> str:
    """Returns a string without the known secrets, and what looks like one."""
    for mask in _masks:
        text = mask.text(text)
    return text


@contextmanager
def masked_output() -> Iterator[None]:
    """Masks what Python writes to standard output and error inside the block."""
    if isinstance(sys.stdout, _Masked):
        yield
        return
    streams, before = (sys.stdout, sys.stderr), list(_masks)
    _masks[:] = [mask_of_command(typed_arguments()), *before]
    sys.stdout, sys.stderr = _Masked(streams[0]), _Masked(streams[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        _masks[:] = before


class _Masked:
    """A stream of text that masks secrets; else it is the stream itself."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(masked(text))

    def writelines(self, lines: list[str]) -> None:
        self._stream.writelines(map(masked, lines))

    def close(self) -> None:
        """Keeps the stream open: at the end of the process, absl's log closes what it writes to."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
