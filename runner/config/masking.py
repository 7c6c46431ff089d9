"""Secrets, replaced by `***` before anything is recorded."""

from __future__ import annotations

import base64
import html
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from runner.config import value_rules
from runner.config.keys import flatten

MASKED = "***"

# What secrets look like is not secret.
_DEFINITION = "tracking.mask."

# A shorter value occurs by chance within other words.
_MIN_LENGTH = 5
# Of fewer bytes, the encoded form is short too.
_MIN_ENCODED = 6

# A sweep's values in overrides: `hydra.sweeper.params={data.token: [a, b]}`.
_PARAMS = "hydra.sweeper.params"
# The keys of mappings in an override: `+data={token: abc}`.
_KEY = re.compile(r"[\w.@/-]+(?=\s*['\"]?\s*:)")

# A password, up to the last `@`, and a token in place of a user's name; but neither a container of
# Azure nor the user of git servers. The signature of an address that expires.
_IN_ADDRESSES = (
    r"://[^\s/@:]*:([^\s'\"]+)@",
    r"(?i)(?<!\babfs)(?<!\babfss)(?<!\bwasb)(?<!\bwasbs)://(?!git@)([^\s/@:]+):?@",
    r"(?i)[?&;](?:sig|signature|code|key|x-(?:amz|goog)-(?:signature|credential|security-token))"
    r"=([^\s&;'\"<>]+)",
)
# Keys that often hold something else: only they themselves are secrets, not what is below them, of
# keys such as `label_key` only a value that is no word, and of `second_pass` none that is a number.
_NAMES_OF_VALUES = ("key", "pass")
_NAMES_OF_KEYS, _NAMES_OF_PASSES = "*_key", "*_pass"
_OFTEN_OTHERS = (*_NAMES_OF_VALUES, _NAMES_OF_KEYS, _NAMES_OF_PASSES)
_WORDS = re.compile(r"[A-Za-z]{0,20}(?:[_/. -][A-Za-z]{0,20})*")

# What follows a name: all within quotes, or a word.
_VALUE = r"((?<=')[^'\n]+|(?<=\")[^\"\n]+|[^\s,;&'\"]+)"

# (last part of a key, value) -> the `${...}` that gave the value from an environment variable.
# The environment is the process's, and so is this: no configuration of it may record such a value.
_typed: dict[tuple[str, str], str] = {}


@dataclass
class MaskConfig:
    """The definition of a secret, which is recorded as `***` in parameters, tags and artifacts."""

    # Globs that match keys of the configuration, dotted or by their last part, ignoring case, `-`
    # as `_`, and `accountKey` as `account_key`. All below such a key is secret too, except below
    # `key`, `pass`, `*_key` and `*_pass`; words such as `label` are no secrets of a `*_key`, nor
    # numbers of a `*_pass`.
    names: list[str] = field(
        default_factory=lambda: [
            "*password*",
            "*passwd*",
            "*secret*",
            "*passphrase*",
            "*passcode*",
            "*token",
            "tokens",
            "pwd",
            "*_pwd",
            "auth",
            "*_auth",
            "*authkey*",
            "*authorization*",
            "*oauth*",
            "*bearer*",
            "*cookie*",
            "*csrf*",
            "*webhook*",
            "*api_key*",
            "*apikey*",
            "*access_key*",
            "*account_key*",
            "*private_key*",
            "*credential*",
            "*connection_string*",
            "*access_signature*",
            "jwt",
            "otp",
            "pw",
            "*_pw",
            "pass",
            "*_pass",
            "key",
            "*_key",
        ]
    )
    # Regular expressions that match parts of strings; masks the first group, or else the whole
    # match.
    values: list[str] = field(
        default_factory=lambda: [
            *_IN_ADDRESSES,
            r"(?i)(?:token|credential|signature|\b(?:auth|pass|sig))(?:=|%3d)" + _VALUE,
            r"(?i)(?:password|passwd|passphrase|passcode|pwd|secret|(?:api|access|account|private)"
            r"[_-]?key)['\"]?\s*(?:[:=]|%3d)\s*['\"]?" + _VALUE,
            r"(?i)\b(?:auth|pass)['\"]?\s*[:=]\s*['\"]((?<=')[^'\n]+|(?<=\")[^\"\n]+)",
            r"(?i)\btoken['\"]?\s*[:=]\s*['\"]?(?=[\w.-]*\d)([\w.-]{12,})",
            r"(?i)(?:authorization|\bx-auth|auth-token)['\"]?\s*[:=]\s*['\"]?((?:\w+ )?[^\s'\",]+)",
            r"(?i)\b(?:x-[\w-]{0,40}(?:token|key)|private-token|[\w-]{0,40}subscription-key)"
            r"['\"]?\s*[:=]\s*['\"]?" + _VALUE,
            r"(?i)\bbearer (?=\S*\d)([\w.~+/=-]{8,})",
            r"(?i)\bcookie['\"]?\s*[:=]\s*['\"]?([^'\"\n]+)",
            r"(?i)--(?:password|passwd|token|secret|api-key)[ =]" + _VALUE,
            r"(?:\s-u|--user)[ =][^\s:]+:(\S+)",
            r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
            r"\b(?:gh[pousr]|github_pat|glpat|hf|npm|[sr]k_live|[sr]k_test)[_-]\w{16,}",
            r"\b(?:sk|xox[a-z])-[\w-]{10,}",
            r"\bAIza[\w-]{35}|\bdapi[0-9a-f]{32}",
            r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*",
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----([^-]+)",
        ],
        metadata=value_rules.PATTERNS,
    )


class Mask:
    """Replaces the secrets in `settings`, and in `others` such as a sweep's trials, by `***`.

    A secret is a value whose key in the configuration, or a key above it, matches one of
    `config.names`, and any part of a string that matches one of `config.values`; wherever it occurs
    in a string, also with escapes as in Python, JSON, a shell or an address. A value from an
    environment variable is replaced by its `${...}`.
    """

    def __init__(
        self,
        config: MaskConfig,
        settings: Mapping[str, object],
        others: Iterable[Mapping[str, object]] = (),
    ) -> None:
        self._names = tuple(map(_spelled_alike, config.names))
        self._patterns = [re.compile(pattern) for pattern in config.values]
        values = [item for nested in (settings, *others) for item in flatten(nested).items()]
        secrets = {secret for name, value in values for secret in self._secrets(name, value)}
        self.known = frozenset(secret for secret in secrets if len(secret) >= _MIN_LENGTH)
        # The longest first: one secret may be part of another.
        longest_first = sorted(self.known, key=len, reverse=True)
        self._spellings = [_spellings(secret) for secret in longest_first]

    def _secrets(self, name: str, value: object) -> Iterator[str]:
        """Yields the secrets in the value of a dotted key."""
        if name.startswith(_DEFINITION):
            return
        if self._is_secret(name, value):
            if _parts(name)[-1] != "key" or not _WORDS.fullmatch(str(value)):
                yield str(value)
        elif isinstance(value, str):
            for pattern in self._patterns:
                yield from (match[1] for match in pattern.finditer(value) if match.re.groups)

    def text(self, text: str) -> str:
        """Returns `text` without the secrets in it."""
        for spelling in self._spellings:
            text = spelling.sub(MASKED, text)
        for pattern in self._patterns:
            text = pattern.sub(_masked, text)
        return text

    def is_in(self, text: str) -> bool:
        """Whether a secret of the configuration is in `text`."""
        return any(spelling.search(text) for spelling in self._spellings)

    def overrides(self, overrides: Iterable[str]) -> list[str]:
        """Returns overrides, or other arguments, without the secrets in them.

        The whole value of a secret key is masked, because a sweep may list values that no single
        configuration has.
        """
        return [self._override(override) for override in overrides]

    def command(self, command: str) -> str:
        """Returns a shell command without the secrets in it."""
        return shlex.join(self.overrides(shlex.split(command)))

    def _override(self, override: str) -> str:
        key, _, value = override.partition("=")
        name = key.lstrip("+~")
        names = [name.removeprefix(f"{_PARAMS}."), *_KEY.findall(value)]
        if any(self._is_secret(name, value) for name in names):
            return f"{key}={MASKED}"
        return self.text(override)

    def value(self, name: str, value: object) -> object:
        """Returns the value of the dotted `name` without the secrets in it."""
        if name.startswith(_DEFINITION):
            return value
        typed = _typed.get((_parts(name)[-1], value)) if isinstance(value, str) else None
        # A default in it, `${oc.env:X,default}`, may be the secret.
        if self._is_secret(name, value) and (typed is None or "," in typed):
            return MASKED
        return self.text(typed or value) if isinstance(value, str) else value

    def settings(self, settings: Any, name: str = "") -> Any:
        """Returns a nested configuration, dicts and lists, without the secrets in it."""
        if isinstance(settings, Mapping):
            prefix = f"{name}." if name else ""
            return {key: self.settings(item, f"{prefix}{key}") for key, item in settings.items()}
        if isinstance(settings, list | tuple):
            return [self.settings(item, f"{name}.{index}") for index, item in enumerate(settings)]
        return self.value(name, settings)

    def _is_secret(self, name: str, value: object) -> bool:
        # An absent value or a boolean reveals nothing.
        if value in (None, "") or isinstance(value, bool | dict | list):
            return False
        if _is_secret_name(name.lower(), self._names):
            return True
        name = _spelled_alike(name)
        if _is_secret_name(name, self._names):
            return True
        last = _parts(name)[-1]
        if _NAMES_OF_PASSES in self._names and fnmatchcase(last, _NAMES_OF_PASSES):
            return isinstance(value, str)
        if last in _NAMES_OF_VALUES:
            return last in self._names
        is_key = _NAMES_OF_KEYS in self._names and fnmatchcase(last, _NAMES_OF_KEYS)
        return is_key and not _WORDS.fullmatch(str(value))


# The configurations of a run, its sources and the other trials of its sweep have the same keys.
@lru_cache(maxsize=10_000)
def _is_secret_name(name: str, patterns: tuple[str, ...]) -> bool:
    """Returns whether a dotted key, one of its parts, or a key above it matches a pattern."""
    parts = _parts(name)
    if parts[-1] == "_target_":
        return False  # The name of a class reveals nothing.
    keys = [*parts, *(".".join(parts[: count + 1]) for count in range(len(parts)))]
    all_below = [name for name in patterns if name not in _OFTEN_OTHERS]
    return any(fnmatchcase(key, pattern) for key in keys for pattern in all_below)


def mask_of_command(arguments: Iterable[str]) -> Mask:
    """Returns a mask of the secrets in the arguments of a command."""
    mask = Mask(MaskConfig(), {})
    masked = [item for item in arguments if mask.overrides([item])[0].endswith(f"={MASKED}")]
    values = [argument.partition("=")[2].strip("'\"") for argument in masked]
    return Mask(MaskConfig(), {"secrets": values})


def remember_typed(typed: Any, resolved: Any) -> None:
    """Remembers what was typed for each string that came from an environment variable.

    Args:
      typed: the nested configuration with its interpolations.
      resolved: the same, resolved.
    """
    values = flatten(resolved)
    texts = {name: str(text) for name, text in flatten(typed).items() if "${" in str(text)}
    secrets = {str(values.get(name)) for name, text in texts.items() if "oc.env:" in text}
    for name, text in texts.items():
        value = values.get(name)
        if isinstance(value, str) and any(secret and secret in value for secret in secrets):
            _typed[_parts(name)[-1], value] = text


def _spelled_alike(name: str) -> str:
    """Returns a key such as `X-Api-Key` or `accountKey` in lower case, `_` between its words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace("-", "_").lower()


def _spellings(secret: str) -> re.Pattern[str]:
    """Returns a pattern of a secret: as it is, each character escaped in any usual way, encoded."""
    spellings = ["".join(map(_spelling, secret))]
    octets = secret.encode("utf-8", "surrogatepass")
    if len(octets) >= _MIN_ENCODED:
        spellings += [f"(?i:{octets.hex()})", *_in_base64(octets)]
    return re.compile("|".join(spellings))


def _in_base64(octets: bytes) -> Iterator[str]:
    """Yields patterns of Base64 that holds the octets, behind any others: `user:password`."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + octets).decode().rstrip("=")
        # The first and the last digit may hold bits of what is beside.
        inner = encoded[-(-before * 8 // 6) : (before + len(octets)) * 8 // 6]
        digits = inner.replace("+", "[+-]").replace("/", "[/_]")
        yield rf"{digits}[\w+/=-]*"


def _spelling(character: str) -> str:
    """Returns a pattern of a character, plain or escaped; of any number of backslashes, once."""
    if character.isascii() and character.isalnum():
        return character
    code, octets = ord(character), character.encode("utf-8", "surrogatepass")
    units = re.findall("....", character.encode("utf-16-be", "surrogatepass").hex())
    escapes = [
        "".join(f"%{octet:02x}" for octet in octets),
        "".join(rf"\\+x{octet:02x}" for octet in octets),
        "".join(rf"\\+u{unit}" for unit in units),
        rf"\\+x{code:02x}",
        rf"\\+U{code:08x}",
        f"&#{code};",
        re.escape(html.escape(character)),
        rf"\\*{re.escape(character)}",
        *_ESCAPES.get(character, ()),
    ]
    return f"(?i:{'|'.join(escapes)})"


# Further escapes: of control characters, of quotes within quotes, of a space in an address.
_ESCAPES = {
    "\n": (r"\\+n",),
    "\r": (r"\\+r",),
    "\t": (r"\\+t",),
    "'": ("'\"'\"'", "''"),
    '"': ('""',),
    " ": (r"\+",),
}


def without_passwords(text: str) -> str:
    """Returns `text` with `***` in place of passwords and tokens in addresses."""
    for pattern in _IN_ADDRESSES:
        text = re.sub(pattern, _masked, text)
    return text


def _parts(name: str) -> list[str]:
    """Returns the parts of a dotted key; a part with a dot in it is `["like.this"]`."""
    return [part for part in re.split(r"[.\[\]\"]+", name) if part] or [""]


def _masked(match: re.Match[str]) -> str:
    if not match.re.groups or match[1] is None:
        return MASKED
    start, end = match.span(1)
    whole = match[0]
    return f"{whole[: start - match.start()]}{MASKED}{whole[end - match.start() :]}"
