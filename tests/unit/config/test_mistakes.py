"""Each mistake that people make, and all that is printed about it: the table in `mistakes.txt`.

A case is a command, `$ OVERRIDES`, and what it prints. Before it stand what it needs: a variable of
the environment, `VARIABLE=value $ ...`, or the contents of `experiment/mine.yaml`, indented by `|`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.command_line import CONF, Command

TABLE = Path(__file__).with_name("mistakes.txt")


@dataclass(frozen=True)
class Case:
    """One mistake.

    Attributes:
      command: the line of the table, after any lines of `file`.
      file: the contents of `experiment/mine.yaml`.
      printed: what the command prints.
    """

    command: str
    file: str
    printed: str

    @property
    def environment(self) -> dict[str, str]:
        name, equals, value = self.command.split("$ ", 1)[0].strip().partition("=")
        return {name: value} if equals else {}

    @property
    def arguments(self) -> list[str]:
        return shlex.split(self.command.split("$ ", 1)[1])


def cases() -> list[Case]:
    """Reads the table."""
    found = []
    for block in TABLE.read_text(encoding="utf-8").split("\n\n"):
        lines = block.strip("\n").splitlines()
        file = [line.removeprefix("|").removeprefix(" ") for line in lines if line[0] == "|"]
        command, *printed = lines[len(file) :]
        found.append(Case(command, "\n".join(file), "\n".join(printed)))
    return found


CASES = cases()


def test_the_table_is_long_and_has_every_case_once() -> None:
    assert len(CASES) >= 60
    assert len({(case.command, case.file) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.command)
def test_what_a_mistake_prints(
    case: Case, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    configs = list(CONF)
    if case.file:
        folder = tmp_path / "conf" / "experiment"
        folder.mkdir(parents=True)
        (folder / "mine.yaml").write_text(f"{case.file}\n", encoding="utf-8")
        configs = ["--config-dir", "conf"]
    elif "--config-dir" in case.arguments:
        configs = []
    before = sorted(tmp_path.rglob("*"))
    outcome = command(*configs, *case.arguments)
    assert outcome.err.rstrip("\n").replace(str(tmp_path), "HERE") == case.printed
    assert (outcome.code, outcome.out) == (2, "")
    assert sorted(tmp_path.rglob("*")) == before


PROPOSED = re.compile(r"write into the `defaults` of experiment/mine\.yaml: - (.*)")
PROPOSING = [case for case in CASES if PROPOSED.search(case.printed)]


@pytest.mark.parametrize("case", PROPOSING, ids=lambda case: case.file.partition("\n")[2])
def test_a_proposed_line_of_defaults_works(case: Case, command: Command, tmp_path: Path) -> None:
    (line,) = PROPOSED.findall(case.printed)
    choices = re.search("choices: ([^,]*)", case.printed)
    if choices is not None:
        line = f"{line.partition(': ')[0]}: {choices[1]}"
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    content = f"# @package _global_\ndefaults: [{line}]\nname: mine\n"
    (folder / "mine.yaml").write_text(content, encoding="utf-8")
    outcome = command("--config-dir", "conf", "+experiment=mine", "--cfg", "job")
    assert (outcome.code, outcome.err) == (0, "")
    assert "name: mine" in outcome.out


def test_a_file_in_another_encoding_is_one_message(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_bytes("# @package _global_\nname: café\n".encode("latin-1"))
    outcome = command("--config-dir", "conf", "+experiment=mine")
    assert (outcome.code, outcome.out) == (2, "")
    assert "is not UTF-8\n  cause: a byte of line 2 cannot be decoded" in outcome.err
