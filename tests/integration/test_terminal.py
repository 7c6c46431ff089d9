"""A real terminal shows one line of progress, however narrow it is."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from contextlib import suppress
from pathlib import Path

from tests.support.command_line import LINEAR
from tests.support.forked import Forks, environment

from .conftest import command_line

_CONTROL = re.compile(r"\x1b\[\??[0-9;]*[A-Za-z]")


def test_progress_is_one_line(forks: Forks, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 50, 0, 0))
    env = {**environment(), "TERM": "xterm"}
    env.pop("COLUMNS", None)
    command = command_line(*LINEAR, "tracking=none", "train.log_every=1")
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = forks.start(command, cwd=tmp_path, env=env, **streams)
    os.close(theirs)
    written = b""
    with suppress(OSError):  # The terminal ends with the last process that has it open.
        while read := os.read(ours, 65536):
            written += read
    os.close(ours)
    run = written.decode()
    assert process.wait() == 0, run
    bars = [_CONTROL.sub("", each) for each in re.split(r"[\r\n]+", run) if "/20" in each]
    assert bars
    assert max(map(len, bars)) <= 50
    # Of two lines the bar would go up to draw the first again; one up is the end of it.
    assert run.count("\x1b[1A") <= 1
