"""The command line, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hydra._internal.hydra import Hydra

from runner.commands import command_line

CONF = ("--config-dir", str(Path(__file__).resolve().parents[1] / "samples" / "conf"))
# The model of one weight of `tests.support.configs.LINEAR`.
LINEAR = (
    "+experiment=tiny",
    "model._target_=tests.samples.odd.Linear",
    "loss={_target_: tests.samples.odd.Sum}",
    "~loss.from_logits",
    "~loss._partial_",
    "~metrics.accuracy",
    "optimizer=sgd",
)


@dataclass(frozen=True)
class Outcome:
    """The output and the exit code of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


def in_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *first: str
) -> Command:
    """Returns what runs commands in `folder`, each beginning with the arguments `first`."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    # Hydra composes each command once more, to see if a configuration sets `hydra.mode`: none does.
    monkeypatch.setattr(Hydra, "get_mode", lambda *_, **__: None)

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["runner", *first, *arguments])
        try:
            code = command_line.main()
        except SystemExit as error:
            code = int(error.code or 0)
        return Outcome(code, *capfd.readouterr())

    return run
