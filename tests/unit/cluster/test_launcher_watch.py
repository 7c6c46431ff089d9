"""A task ends when the process that started it is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.system.lifeline import LIFELINE, OBJECTIVE, end_with_launcher, has_begun, tell_begun

PROGRAM = """
import os, time
from runner.system.lifeline import end_with_launcher
end_with_launcher(os.environ)
print("started", flush=True)
time.sleep(60)
"""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    os.close(ends[0])


def test_the_end_of_the_pipe_ends_the_process(pipe: tuple[int, int]) -> None:
    lifeline, held = pipe
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, LIFELINE: str(lifeline)},
        pass_fds=(lifeline,),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "started\n"
        assert process.poll() is None
        os.close(held)
        assert process.wait(timeout=10) == -15


def test_what_nobody_reads_any_more_ends_nothing(pipe: tuple[int, int]) -> None:
    lifeline, held = pipe
    program = PROGRAM.replace(
        "time.sleep(60)",
        "input()\nfor file in (sys.stdout, sys.stderr):\n"
        "    for _ in range(2): print('lost', file=file, flush=True)\nos._exit(7)",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program.replace("import os", "import os, sys")],
        env={**os.environ, LIFELINE: str(lifeline)},
        pass_fds=(lifeline,),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    with process.stdin:
        with process.stdout:
            assert process.stdout.readline() == "started\n"
        process.stdin.write("\n")
    assert process.wait(timeout=10) == 7
    os.close(held)


def test_a_process_that_nobody_started_watches_nothing() -> None:
    before = len(os.listdir("/proc/self/task"))
    end_with_launcher({})
    assert len(os.listdir("/proc/self/task")) == before


def test_the_chief_tells_that_it_has_begun_a_run(tmp_path: Path) -> None:
    tell_begun({})
    environ = {OBJECTIVE: str(tmp_path / "objective")}
    assert not has_begun(environ)
    tell_begun(environ)
    assert has_begun(environ)
