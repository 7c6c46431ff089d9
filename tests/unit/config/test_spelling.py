from __future__ import annotations

import pytest

from runner.config.hydra_grammar import plain


@pytest.mark.parametrize(
    ("value", "as_it_is"),
    [
        ("adam", "adam"),
        ("0.10", "0.10"),
        (r"experiment\:tiny", "experiment:tiny"),
        (r'"^$\w+$"', r"^$\w+$"),
        ("'a, b'", "a, b"),
        (r"'it\'s'", "it's"),
        ("'1'", "'1'"),
        ("'null'", "'null'"),
        ("'[a]'", "'[a]'"),
        ("''", "''"),
        ("['a',b]", "['a',b]"),
        ("'unfinished", "'unfinished"),
    ],
)
def test_a_value_is_as_it_is_unless_its_quotes_make_it_a_text(value: str, as_it_is: str) -> None:
    assert plain(value) == as_it_is
