"""A real terminal shows one line of progress, however narrow it is."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.command_line import LINEAR
from tests.support.forked import Forks, environment

from .conftest import CONTROL, command_line, in_terminal, output_of


def test_progress_is_one_line(forks: Forks, tmp_path: Path) -> None:
    command = command_line(*LINEAR, "tracking=none", "train.log_every=1")
    process = in_terminal(forks, command, tmp_path, environment(), columns=50)
    run = output_of(process)
    assert process.wait() == 0, run
    bars = [CONTROL.sub("", each) for each in re.split(r"[\r\n]+", run) if "/20" in each]
    assert bars
    assert max(map(len, bars)) <= 50
    # Of two lines the bar would go up to draw the first again; one up is the end of it.
    assert run.count("\x1b[1A") <= 1
