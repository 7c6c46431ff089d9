"""What real terminals of several widths show: one line of progress, a plan of few lines."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from tests.tiny.forked import Forks, environment

from .conftest import command_line

_CONTROL = re.compile(r"\x1b\[\??[0-9;]*[A-Za-z]")


def on_terminal(forks: Forks, folder: Path, columns: int, *arguments: str) -> str:
    """Returns what a command writes to a terminal of so many columns; it must succeed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {**environment(), "TERM": "xterm"}
    env.pop("COLUMNS", None)
    command = command_line("tracking=none", *arguments)
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = forks.start(command, cwd=folder, env=env, **streams)
    os.close(theirs)
    written = b""
    with suppress(OSError):  # The terminal ends with the last process that has it open.
        while read := os.read(ours, 65536):
            written += read
    os.close(ours)
    assert process.wait() == 0, written.decode()
    return written.decode()


@pytest.mark.parametrize("columns", [50, 80])
def test_progress_is_one_line(forks: Forks, tmp_path: Path, columns: int) -> None:
    more = "+metrics.again={_target_: keras.metrics.sparse_categorical_accuracy, _partial_: true}"
    run = on_terminal(forks, tmp_path, columns, "+experiment=tiny", more, "train.log_every=1")
    shown = [_CONTROL.sub("", each) for each in re.split(r"[\r\n]+", run)]
    bars = [each for each in shown if "/20" in each]
    assert bars
    assert max(map(len, bars)) <= columns
    assert ("training" in bars[-1]) is (columns >= 80)
    assert (re.search("loss [0-9]", bars[-1]) is not None) is (columns >= 80)
    # Of two lines the bar would go up to draw the first again; one up is the end of it.
    assert run.count("\x1b[1A") <= 1


@pytest.mark.parametrize("columns", [50, 80])
def test_a_plan_fits_the_width(forks: Forks, tmp_path: Path, columns: int) -> None:
    plan = on_terminal(forks, tmp_path, columns, "+experiment=tiny", "mode=plan")
    lines = [_CONTROL.sub("", each).rstrip() for each in plan.split("\r\n")]
    assert re.fullmatch(r"\d+ model variables from initializers", lines[0])
    assert max(map(len, lines)) <= columns
    (kernel,) = [n for n, each in enumerate(lines) if re.match(r" ?body/dense/kernel +8x4", each)]
    assert "GlorotUniform" in "".join(lines[kernel : kernel + 2])
    assert ("GlorotUniform" in lines[kernel]) is (columns >= 80)
    assert len([each for each in lines if "optimizer slot" in each]) == 1
