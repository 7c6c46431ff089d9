"""Opens bundles whose paths TensorFlow takes for patterns: through links in a temporary folder."""

from __future__ import annotations

import functools
import glob
import os
import re
import tempfile

from runner.checkpoints import files

_WILDCARD = re.compile(r"[*?\\\[]")
_NAME = "checkpoint"


def without_wildcards(prefix: str) -> str:
    """Returns a prefix of the same bundle that TensorFlow does not take for a pattern.

    It takes `*`, `?`, `[` and a backslash for one even where it opens a single file.
    """
    if not _WILDCARD.search(prefix) or files.is_remote(prefix):
        return prefix
    directory, name = os.path.split(os.path.abspath(prefix))
    paths = files.matching(directory, f"{glob.escape(name)}.*")
    folder = _links(os.path.join(directory, name), tuple(sorted(paths)))
    return os.path.join(folder.name, _NAME)


# Removed when the process ends: an operation of a graph may read it at any time.
@functools.cache
def _links(prefix: str, paths: tuple[str, ...]) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="runner-links-")
    for path in paths:
        os.symlink(path, os.path.join(folder.name, f"{_NAME}{path.removeprefix(prefix)}"))
    return folder
