"""The process of a command: its exit code, and no traceback, however its output and life end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner.system.status import Status
from tests.conformance.goldens import save_npz
from tests.support.command_line import CONF

ROOT = Path(__file__).resolve().parents[3]
RUNNER = (sys.executable, "-m", "runner")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
LISTING = ("inspect", "m.npz")
TRAINING = (*CONF, "+experiment=tiny", "tracking=none")
# Half a megabyte of lines does not fit into a pipe.
UNREAD = {
    LISTING: 0,
    ("--help",): 0,
    ("map", "--help"): 0,
    ("--version",): 0,
    (*CONF, "+experiment=tiny", "--cfg", "job"): 0,
    TRAINING: 143,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_npz(tmp_path / "m.npz", **{f"{number}{'x' * 5000}": 1.0 for number in range(99)})
    return tmp_path


def _finished(arguments: tuple[str, ...], folder: Path, stdout: int) -> tuple[int, str]:
    done = subprocess.run(
        [*RUNNER, *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", UNREAD, ids=lambda arguments: arguments[-1])
def test_a_reader_that_has_gone_is_no_error(arguments: tuple[str, ...], folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code, error = _finished(arguments, folder, writer)
    os.close(writer)
    assert code == UNREAD[arguments], error
    ended = "runner: ended by SIGTERM\n  remedy: the same command continues the run\n"
    assert error == (ended if code else "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
@pytest.mark.parametrize("arguments", UNREAD, ids=lambda arguments: arguments[-1])
def test_output_that_cannot_be_written_is_one_message(
    arguments: tuple[str, ...], folder: Path
) -> None:
    with open("/dev/full", "w") as full:
        code, error = _finished(arguments, folder, full.fileno())
    assert (code, error.splitlines()) == (
        1,
        ["runner: standard output cannot be written", "  cause: No space left on device"],
    )
    if arguments == TRAINING:
        record = (folder / "runs" / "tiny" / "001" / "run.json").read_text()
        assert f'"{Status.FINISHED}"' in record


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
@pytest.mark.parametrize("arguments", UNREAD, ids=lambda arguments: arguments[-1])
def test_output_that_is_closed_is_no_error(
    arguments: tuple[str, ...], closed: str, folder: Path
) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *RUNNER, *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


COMMANDS = [LISTING, ("--help",), ("sync", "."), ("map", "m.npz"), (*CONF, "+experiment=tiny")]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_a_signal_at_the_start_prints_no_traceback_and_promises_nothing(
    arguments: tuple[str, ...], folder: Path
) -> None:
    codes = set()
    # From the first line of `runner.__main__` to the imports of the command.
    for module in ("runner.errors", "runner.commands", "runner.config.masking"):
        done = subprocess.run(
            [sys.executable, "-c", INTERRUPTED, module, *arguments],
            cwd=folder,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        codes.add(done.returncode)
        assert done.stderr in ("", "runner: ended by SIGINT\n")
    # The first is the code of a shell for a process that the signal has killed.
    assert codes <= {-signal.SIGINT, 130}
    assert 130 in codes


INTERRUPTED = """
import os, runpy, signal, sys
module = sys.argv.pop(1)
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
runpy.run_module("runner", run_name="__main__", alter_sys=True)
"""
