"""Links of the docs lead somewhere, every page is in the site's menu, and examples stay true."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

import runner

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def anchors(page: Path) -> set[str]:
    """Returns the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {each.strip().replace(" ", "-") for each in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_menu_holds_every_page() -> None:
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r": (\S+\.md)$", menu, re.MULTILINE)
    assert sorted(listed) == sorted(
        page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")
    )


def test_yaml_is_well_formed() -> None:
    for page in PAGES:
        for text in re.findall(r"```yaml.*?\n(.*?)```", page.read_text(), re.DOTALL):
            yaml.safe_load(text)


def test_the_session_example_is_the_one_of_the_docstring_which_is_run_elsewhere() -> None:
    page = (DOCS / "how-to" / "sessions.md").read_text()
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert found is not None
    assert (inspect.getdoc(runner) or "").strip().endswith(found[1].strip())


def test_the_common_overrides_are_read_by_hydra_and_give_one_value_each() -> None:
    page = (DOCS / "how-to" / "overrides.md").read_text()
    parser = OverridesParser.create()
    count = 0
    for code in re.findall(r"^\| [^|]+\| (.*) \|$", page, re.MULTILINE):
        for words in map(shlex.split, re.findall(r"`([^`]*=[^`]*)`", code)):
            for override in words:
                if override != "-m":
                    parsed = parser.parse_override(override)
                    assert parsed.is_sweep_override() == ("-m" in words), override
                    count += 1
    assert count >= 30
