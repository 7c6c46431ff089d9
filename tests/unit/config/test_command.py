"""The command that started a process, and commands to copy into a shell."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from runner.config import command


@pytest.mark.parametrize(
    "path", ["/runs/a/001", "/my runs/it's/001", "/a=b,c/{d}/[e]/001", '/say "hi"/\\/001', "/ü/$1"]
)
def test_a_run_directory_reaches_the_configuration_as_it_is(path: str) -> None:
    mode, run_dir = shlex.split(command.on_run("export", Path(path)))[-2:]
    parsed = OverridesParser.create().parse_overrides([mode, run_dir])
    assert [each.value() for each in parsed] == ["export", path]


def test_a_relative_run_directory_is_made_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert command.on_run("evaluate", Path("runs/a/001")).endswith(" run_dir=/runs/a/001")


def test_the_command_is_called_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "runner")])
    assert command.program() == "bin/runner"
    monkeypatch.setattr(sys, "argv", ["/site-packages/runner/__main__.py"])
    assert command.program() == "bin/python -m runner"


def test_a_run_that_was_not_to_be_resumed_is_resumed_by_the_rest_of_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = ["--config-dir", "my conf", "+experiment=x", "resume=never", "a='b c'"]
    monkeypatch.setattr(sys, "argv", ["runner", *given])
    assert shlex.split(command.resuming()) == [*given[:3], given[4]]


@pytest.mark.parametrize(
    "option", [["--config-dir", "mine"], ["--config-dir=mine"], ["-cd", "mine"]]
)
def test_folders_of_configurations_are_those_of_the_command(
    option: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["runner", *option, "+experiment=x"])
    assert [*command.config_folders()] == [Path("mine")]
