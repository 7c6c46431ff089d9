"""Secrets are masked wherever they occur; every value has one dotted name."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from urllib.parse import quote, quote_plus

import pytest
import yaml

from runner.config.keys import flatten
from runner.config.masking import MASKED, Mask, remember_typed
from runner.config.schema import MaskConfig
from runner.config.spelling import spelled

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
        ("postgresql://me:p@ss/wo:rd@host/db", "postgresql://me:***@host/db"),
        ("git+https://t0kentoken@host/x, http://host", "git+https://***@host/x, http://host"),
        ('{"Authorization": "Bearer abcdefg"}', '{"Authorization": "***"}'),
        ("+data.passphrase=abc pwd=def auth=gh", "+data.passphrase=*** pwd=*** auth=***"),
        ("+data.password=abc x=1", "+data.password=*** x=1"),
        ("AWS AKIAABCDEFGHIJKLMNOP!", "AWS ***!"),
        ("ghp_abcdefghijklmnopqrst", "***"),
        ("sk-proj-abcdefghijklmnop", "***"),
        ("sk_live_abcdefghijklmnop xoxb-0987654321-abc", "*** ***"),
        ("ASIAIOSFODNN7EXAMPLE; eyJhbGciOiJI.eyJzdWIiOiIx.abc", "***; ***"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END",
            "-----BEGIN RSA PRIVATE KEY-----***-----END",
        ),
        ("connect(password='a b', pwd=\"c d\")", "connect(password='***', pwd=\"***\")"),
        ('{"password": "abc", "api-key": "d"}', '{"password": "***", "api-key": "***"}'),
        ("aws_secret_access_key = wJalr/x+y", "aws_secret_access_key = ***"),
        ("X-Vault-Token: abc, PRIVATE-TOKEN: d1", "X-Vault-Token: ***, PRIVATE-TOKEN: ***"),
        ("sends Bearer abc123def456", "sends Bearer ***"),
        ("a bearer certificate, token: word", "a bearer certificate, token: word"),
        ("curl -u me:abc https://h", "curl -u me:*** https://h"),
        ("login --password abc", "login --password ***"),
        ("x?password%3Dabc", "x?password%3D***"),
        ("tokens=12 at 12:30 user@host", "tokens=12 at 12:30 user@host"),
    ],
)
def test_what_looks_like_a_secret_is_masked_in_any_text(mask: Mask, text: str, masked: str) -> None:
    assert mask.text(text) == masked


PASSWORDS = (
    "a\"b''c\\ d/7+é",
    "a\nb\tc\\d",
    "pä ss🙂'\"$x",
    "p@ss:w%rd&<>",
    "\\\\long\\",
    "plain123",
)
SPELLINGS: dict[str, Callable[[str], str]] = {
    "repr": repr,
    "repr of a repr": lambda text: repr(repr(text)),
    "ascii": ascii,
    "bytes": lambda text: repr(text.encode()),
    "error": lambda text: repr(ValueError({"login": text})),
    "JSON": json.dumps,
    "JSON within JSON": lambda text: json.dumps(json.dumps(text)),
    "UTF-8 JSON": lambda text: json.dumps(text, ensure_ascii=False),
    "YAML": lambda text: yaml.safe_dump({"a": text}, width=1000),
    "path of an address": quote,
    "query of an address": lambda text: quote_plus(text, safe=""),
    "lower case in an address": lambda text: re.sub("%..", lambda m: m[0].lower(), quote(text)),
    "shell": shlex.quote,
    "HTML": html.escape,
    "Base64": lambda text: base64.b64encode(text.encode()).decode(),
    "Base64 of a login": lambda text: base64.b64encode(f"me:{text}".encode()).decode(),
    "Base64 in an address": lambda text: base64.urlsafe_b64encode(f"user:{text}".encode()).decode(),
    "hexadecimal": lambda text: text.encode().hex(),
    "override": lambda text: spelled({"a": text}),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("password", PASSWORDS)
def test_a_secret_is_masked_in_every_spelling(password: str, spelling: str) -> None:
    mask = Mask(MaskConfig(), {"data": {"pass": password}})
    text = SPELLINGS[spelling](password)
    masked = mask.text(f"<{text}>")
    assert MASKED in masked
    assert not set(re.findall(r"\w\w+", password)) & set(re.findall(r"\w+", masked))


# Key -> value -> what is recorded of it.
NAMED: dict[str, tuple[object, object]] = {
    "headers.X-Api-Key": ("a1b2c3", "***"),
    "headers.Cookie": ("session=a; x=b", "***"),
    "account_key": ("abcdefgh", "***"),
    "connection_string": ("AccountName=a;AccountKey=b", "***"),
    "pass": ("word", "***"),
    "key": ("image", "***"),
    "storage_key": ("a1b2c3", "***"),
    "accountKey": ("a1b2c3", "***"),
    "passWord": ("word", "***"),
    "headers.X-CSRF": ("a1b2c3", "***"),
    "db_pass": ("word", "***"),
    "second_pass": (3, 3),
    "webhook_url": ("https://h/x", "***"),
    "label_key": ("label", "label"),
    "feature_key": ("image/encoded", "image/encoded"),
    "monkey": ("see", "see"),
    "passes": ("2", "2"),
    "conn": ("Server=x;AccountKey=abc==;Pwd=def", "Server=x;AccountKey=***;Pwd=***"),
    "sas": ("https://h/x?sv=1&sig=a%3D&se=2", "https://h/x?sv=1&sig=***&se=2"),
    "presigned": (
        "s3://b/x?X-Amz-Signature=a&X-Amz-Credential=b&n=1",
        "s3://b/x?X-Amz-Signature=***&X-Amz-Credential=***&n=1",
    ),
    "ftp": ("ftp://token123@host/x", "ftp://***@host/x"),
    "git": ("ssh://git@host/x", "ssh://git@host/x"),
    "container": ("abfss://weights@account.dfs.net/x", "abfss://weights@account.dfs.net/x"),
    "curl": ("-H 'X-Api-Key: abc' -H 'Cookie: a=b; c=d'", "-H 'X-Api-Key: ***' -H 'Cookie: ***'"),
}


@pytest.mark.parametrize("key", NAMED)
def test_what_is_a_secret(key: str) -> None:
    value, recorded = NAMED[key]
    assert Mask(MaskConfig(), {}).value(f"data.{key}", value) == recorded


def test_nothing_below_a_key_that_often_holds_something_else_is_a_secret() -> None:
    model = {"key": {"units": 128, "kind": "dense"}, "pass": ["first", "second"]}
    assert Mask(MaskConfig(), {"model": model}).settings({"model": model}) == {"model": model}


def test_a_part_of_a_value_that_is_a_secret_is_masked_wherever_it_occurs() -> None:
    mask = Mask(MaskConfig(), {"data": {"conn": "AccountKey=abcdef==;X=1"}})
    assert mask.text("cannot sign with abcdef==") == "cannot sign with ***"
    assert mask.is_in("runs/abcdef==")
    assert not mask.is_in("runs/abcdef")


@pytest.mark.parametrize(
    "key", ["tokens", "passphrase", "ftp_pwd", "pwd", "auth", "http_auth", "Authorization"]
)
@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ("SECRET", "***"),
        (["SECRET", 8], ["***", "***"]),
        ({"value": ["SECRET"], "on": True}, {"value": ["***"], "on": True}),
        ({"_target_": "my.Auth", "user": "SECRET"}, {"_target_": "my.Auth", "user": "***"}),
    ],
)
def test_all_below_a_secret_key_is_masked(key: str, value: object, masked: object) -> None:
    settings = {"data": {key: value, "path": "/SECRET", "max_tokens": 12}}
    mask = Mask(MaskConfig(), settings)
    assert mask.settings(settings)["data"] == {key: masked, "path": "/***", "max_tokens": 12}
    assert mask.overrides([f"+data={{x: 1, {key}: SECRET}}"]) == ["+data=***"]


def test_values_from_the_environment_are_recorded_as_typed() -> None:
    typed = {
        "data": {
            "dsn": "${oc.env:TEST_DSN}",
            "password": "${oc.env:TEST_DSN}",
            "token": "${oc.env:TEST_NONE,default-token}",
            "files": ["${data.dsn}/x", "${name}/x", "plain"],
        },
        "name": "mine",
    }
    resolved = {
        "data": {
            "dsn": "warehouse",
            "password": "warehouse",
            "token": "default-token",
            "files": ["warehouse/x", "mine/x", "plain"],
        },
        "name": "mine",
    }
    remember_typed(typed, resolved)
    data = {**typed["data"], "token": "***", "files": ["${data.dsn}/x", "mine/x", "plain"]}  # type: ignore[dict-item]
    mask = Mask(MaskConfig(), resolved)
    assert mask.settings({"sources": resolved})["sources"] == {"data": data, "name": "mine"}


def test_the_patterns_are_the_users(mask: Mask) -> None:
    own = Mask(MaskConfig(names=["*.PIN"], values=["x+"]), {"card": {"pin": 987654}})
    assert own.value("card.pin", 987654) == "***"
    assert own.text("987654 axxb password=abc") == "*** a***b password=abc"
    assert own.value("password", "abc") == "abc"
    assert own.value("card.pin", None) is None


@pytest.mark.parametrize(
    ("override", "masked"),
    [
        ("+data.hf_token=abc-1,def-2", "+data.hf_token=***"),
        ("data.hf_token=choice(abc-1, def-2)", "data.hf_token=***"),
        ("hydra.sweeper.params={seed: [1], data.hf_token: [a, b]}", "hydra.sweeper.params=***"),
        ("hydra.sweeper.params={seed: [1, 2]}", "hydra.sweeper.params={seed: [1, 2]}"),
        ("++hydra.sweeper.params.data.pin=1,2", "++hydra.sweeper.params.data.pin=***"),
        ("data.path=/k3y-of-mine,/another", "data.path=/***,/another"),
        ("--config-dir", "--config-dir"),
    ],
)
def test_every_value_that_an_override_gives_to_a_secret_key_is_masked(
    override: str, masked: str
) -> None:
    mask = Mask(MaskConfig(names=["*token", "*api_key*", "data.pin"]), SETTINGS)
    assert mask.overrides([override]) == [masked]
    command = shlex.join(["python", "it's", override])
    assert shlex.split(mask.command(command)) == ["python", "it's", masked]


def test_secrets_of_other_configurations_are_known_too() -> None:
    settings = ({"password": f"word-{number}"} for number in range(3))
    mask = Mask(MaskConfig(), SETTINGS, settings)
    assert mask.text("word-0 word-2 k3y-of-mine") == "*** *** ***"


class Color(Enum):
    RED = 1


def test_every_value_has_its_dotted_name() -> None:
    config = {
        "train": {"steps": 10, "goal": None},
        "layers": [{"units": 8}, {"units": (4, 2)}],
        "color": Color.RED,
        "rename": {},
        "exclude": [],
    }
    assert flatten(config) == {
        "train.steps": 10,
        "train.goal": None,
        "layers.0.units": 8,
        "layers.1.units.0": 4,
        "layers.1.units.1": 2,
        "color": "RED",
        "rename": {},
        "exclude": [],
    }


def test_keys_that_look_like_paths_keep_apart_from_paths() -> None:
    config = {"a.b": 1, "a": {"b": 2, "c.d": 3, "": 4}, "e[0]": 5, "e": [6]}
    assert list(flatten(config)) == ['["a.b"]', "a.b", 'a["c.d"]', 'a[""]', '["e[0]"]', "e.0"]
    assert flatten({"rates": {1000: 1, Color.RED: 2}}) == {"rates.1000": 1, "rates.RED": 2}


LOGGING = """
import logging, sys
from runner.config.masked_output import masked_output
with masked_output():
    from absl import logging as absl_logging
    absl_logging.use_absl_handler()
    absl_logging.warning("password=abc")
logging.shutdown()
print("the last words", file=sys.stderr)
"""


def test_standard_error_outlives_the_log_of_absl() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGGING], capture_output=True, text=True, check=True
    )
    assert done.stderr.endswith("] password=***\nthe last words\n")
