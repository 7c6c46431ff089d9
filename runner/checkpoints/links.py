"""Opens bundles whose paths TensorFlow takes for patterns: through links in a temporary folder."""

from __future__ import annotations

import atexit
import functools
import glob
import os
import re
import shutil
import tempfile

from runner.checkpoints import files

_WILDCARD = re.compile(r"[*?\\\[]")
_NAME = "checkpoint"


def without_wildcards(prefix: str) -> str:
    """Returns a prefix of the same bundle that TensorFlow does not take for a pattern.

    It takes `*`, `?`, `[` and a backslash for one even where it opens a single file.
    """
    if not _WILDCARD.search(prefix):
        return prefix
    directory, name = os.path.split(os.path.abspath(prefix))
    paths = files.matching(directory, f"{glob.escape(name)}.*")
    folder = _links(os.path.join(directory, name), tuple(sorted(paths)))
    return os.path.join(folder, _NAME)


@functools.cache
def _links(prefix: str, paths: tuple[str, ...]) -> str:
    folder = tempfile.mkdtemp(prefix="runner-links-")
    # Only then: an operation of a graph may read it at any time.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path in paths:
        os.symlink(path, os.path.join(folder, f"{_NAME}{path.removeprefix(prefix)}"))
    return folder
