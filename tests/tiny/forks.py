"""Starts many `python -m runner` cheaply: one process imports TensorFlow, its forks run.

TensorFlow is imported and not used before a fork, so that nothing of it, no thread and no session,
is shared: a fork differs from a process of its own in nothing but the seconds that importing takes.
Lines of JSON come in, one answer each goes out.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import runner.hooks.checkpoint
import runner.run
import tests.tiny.experiment
import tests.tiny.hooks  # noqa: F401 - likewise
from runner.__main__ import main


def serve() -> list[str] | None:
    """Answers requests; in a fork, returns the arguments to run with."""
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                become(Path(request["folder"]), request["output"])
                return list(request["arguments"])
        print(json.dumps(answer), flush=True)
    return None


def slow_saves(marker: Path) -> None:
    """Makes saves take as long as on a slow disk, and a file exist as long as one is under way."""
    # Any: modules, whose functions are exchanged.
    hook: Any = runner.hooks.checkpoint
    system: Any = os
    save, fsync = hook.save, os.fsync

    def marked(*arguments: Any) -> None:
        marker.touch()
        save(*arguments)
        marker.unlink()

    def slow(descriptor: int) -> None:
        time.sleep(0.02)
        fsync(descriptor)

    hook.save, system.fsync = marked, slow


def become(folder: Path, output: str) -> None:
    """Gives a fork a session, a working directory, and an output of its own."""
    os.setsid()
    os.chdir(folder)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for one, other in ((nowhere, 0), (file, 1), (file, 2)):
        os.dup2(one, other)
    slow_saves(folder / "saving")


if __name__ == "__main__":
    arguments = serve()
    if arguments is not None:
        sys.argv[1:] = arguments
        sys.exit(main())
