from __future__ import annotations

import pytest

from runner.errors import ConfigError
from runner.tracking.masking import Mask
from runner.tracking_config import MaskConfig

SETTINGS = {
    "data": {"api_key": "k3y-of-mine", "path": "/data?key=k3y-of-mine", "password": ""},
    "model": {"hf_Token": "t0k3n", "layers": [1, 2], "token_count": 12},
    "logins": [{"password": 123456}],
    "tracking": {"uri": "http://me:s3cret@host:5000"},
}


@pytest.fixture
def mask() -> Mask:
    return Mask(MaskConfig(), SETTINGS)


def test_a_nested_configuration_loses_its_secrets_only(mask: Mask) -> None:
    assert mask.settings(SETTINGS) == {
        "data": {"api_key": "***", "path": "/data?key=***", "password": ""},
        "model": {"hf_Token": "***", "layers": [1, 2], "token_count": 12},
        "logins": [{"password": "***"}],
        "tracking": {"uri": "http://me:***@host:5000"},
    }


def test_a_secret_is_found_wherever_its_value_occurs(mask: Mask) -> None:
    assert mask.text("curl -H k3y-of-mine --pin 123456 t0k3n") == "curl -H *** --pin *** ***"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://me:pw@host/db", "postgresql://me:***@host/db"),
        ("+data.password=abc x=1", "+data.password=*** x=1"),
        ("AWS AKIAABCDEFGHIJKLMNOP!", "AWS ***!"),
        ("ghp_abcdefghijklmnopqrst", "***"),
        ("sk-proj-abcdefghijklmnop", "***"),
        ("tokens=12 at 12:30 user@host", "tokens=12 at 12:30 user@host"),
    ],
)
def test_what_looks_like_a_secret_is_masked_in_any_text(mask: Mask, text: str, masked: str) -> None:
    assert mask.text(text) == masked


def test_the_patterns_are_the_users(mask: Mask) -> None:
    own = Mask(MaskConfig(names=["*.PIN"], values=["x+"]), {"card": {"pin": 987654}})
    assert own.value("card.pin", 987654) == "***"
    assert own.text("987654 axxb password=abc") == "*** a***b password=abc"
    assert own.value("password", "abc") == "abc"
    assert own.value("card.pin", None) is None


def test_every_pattern_that_is_malformed_is_told() -> None:
    with pytest.raises(ConfigError, match=r"'\(' is no regular expression") as raised:
        Mask(MaskConfig(values=["(", "ok", "["]), {})
    assert len(raised.value.problems) == 2
