"""The reference of the configuration: on its page, and in `--help` of an experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.config.reference_page import page, sections
from tests.support.command_line import CONF, Command

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "configuration.md"
KEYS = {key.name: key for section in sections() for key in section.keys}


def test_the_page_is_what_would_be_made_now() -> None:
    remedy = f"run: python -m runner.config.reference_page > {PAGE}"
    assert PAGE.read_text(encoding="utf-8") == page(), remedy


def test_every_key_has_a_meaning_and_every_group_of_keys() -> None:
    assert [name for name, key in KEYS.items() if not key.meaning] == []
    assert [section.name for section in sections() if not section.meaning] == []


@pytest.mark.parametrize(
    ("name", "accepts", "default"),
    [
        ("name", "string", ""),
        ("seed", "whole number, from 0 to 4294967295", "0"),
        ("run_dir", "string", "runs/${name}"),
        ("train.ema_decay", "number or null, between 0 and 1", "null"),
        ("train.non_finite.action", "one of the values below", "raise"),
        ("restoration.expect", "mapping to the values below", "{}"),
        ("scaffolds.NAME.variables.include", "list of strings", ""),
        ("scaffolds.NAME.average", "`last N`, a list of steps or paths, or null", "null"),
        ("scaffolds.NAME.state", "list of the values below", "[weights, batch_norm]"),
        ("scaffolds.NAME.transpose", "mapping to lists of whole numbers", "{}"),
        ("scaffolds.NAME.vocabulary.PATTERN.axis", "whole number", "0"),
    ],
)  # fmt: skip
def test_what_a_key_accepts_in_words(name: str, accepts: str, default: str) -> None:
    assert (KEYS[name].accepts, KEYS[name].default) == (accepts, default)


def test_choices_are_explained_also_those_that_are_keywords_of_python() -> None:
    assert KEYS["train.non_finite.action"].choices["raise"] == "Raises an error."
    assert KEYS["resume"].choices["never"] == "Starts a new run."


@pytest.mark.parametrize("columns", [80, 120])
def test_help_of_an_experiment_lists_its_values_with_their_meaning(
    command: Command, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    outcome = command("+experiment=warm", "train.steps=7", "--help", *CONF)
    assert (outcome.code, outcome.err) == (0, "")
    printed = outcome.out.partition("\nKeys:\n")[2].partition("\nOptions:\n")[0].splitlines()
    steps = next(n for n, line in enumerate(printed) if line.startswith("  train.steps=7"))
    meaning = printed[steps]
    assert meaning.endswith(" The global step at which training ends.")
    # A scaffold's keys by its name where the experiment sets them, else with their defaults.
    keys = {line.strip().partition("  ")[0] for line in printed}
    assert {"scaffolds.body.checkpoint=experiment:tiny", "scaffolds.NAME.missing=error"} <= keys
    assert "run_dir=runs/${name}" in keys
    assert max(map(len, (line for line in printed if "=" not in line))) < columns
