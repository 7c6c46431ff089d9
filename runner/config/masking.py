"""Secrets, replaced by `***` before anything is recorded."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from runner.config import choices
from runner.config.keys import flatten

MASKED = "***"

# A shorter value occurs by chance within other words.
_MIN_LENGTH = 5

# A sweep's values in overrides: `hydra.sweeper.params={data.token: [a, b]}`.
_PARAMS = "hydra.sweeper.params"
# The keys of mappings in an override: `+data={token: abc}`.
_KEY = re.compile(r"[\w.@/-]+(?=\s*['\"]?\s*:)")

# A password, up to the last `@`, and a token in place of a user's name.
_IN_ADDRESSES = (
    r"://[^\s/@:]*:([^\s'\"]+)@",
    r"(?i)https?://([^\s/@:]+):?@",
)

# (last part of a key, value) -> the `${...}` that gave the value from an environment variable.
_typed: dict[tuple[str, str], str] = {}


@dataclass
class MaskConfig:
    """The definition of a secret, which is recorded as `***` in parameters, tags and artifacts."""

    # Globs that match keys of the configuration, dotted or by their last part, ignoring case. All
    # below such a key is secret too.
    names: list[str] = field(
        default_factory=lambda: [
            "*password*",
            "*passwd*",
            "*secret*",
            "*passphrase*",
            "*token",
            "tokens",
            "pwd",
            "*_pwd",
            "auth",
            "*_auth",
            "*authorization*",
            "*api_key*",
            "*apikey*",
            "*access_key*",
            "*private_key*",
            "*credential*",
        ]
    )
    # Regular expressions that match parts of strings; masks the first group, or else the whole
    # match.
    values: list[str] = field(
        default_factory=lambda: [
            *_IN_ADDRESSES,
            r"(?i)(?:password|passwd|passphrase|pwd|secret|token|api_?key|access_key|credential"
            r"|\bauth)=([^\s,;&'\"]+)",
            r"(?i)authorization['\"]?\s*[:=]\s*['\"]?((?:\w+ )?[^\s'\",]+)",
            r"\bAKIA[0-9A-Z]{16}\b",
            r"\b(?:gh[pousr]|github_pat|glpat|hf)[_-]\w{16,}",
            r"\bsk-[\w-]{16,}",
        ],
        metadata=choices.PATTERNS,
    )


class Mask:
    """Replaces the secrets in `settings`, and in `others` such as a sweep's trials, by `***`.

    A secret is a value whose key in the configuration, or a key above it, matches one of
    `config.names`, wherever that value occurs in a string; and any part of a string that matches
    one of `config.values`. A value from an environment variable is replaced by its `${...}`.
    """

    def __init__(
        self,
        config: MaskConfig,
        settings: Mapping[str, object],
        others: Iterable[Mapping[str, object]] = (),
    ) -> None:
        self._names = tuple(pattern.lower() for pattern in config.names)
        self._patterns = [re.compile(pattern) for pattern in config.values]
        secrets = {
            str(value)
            for values in (settings, *others)
            for name, value in flatten(values).items()
            if self._is_secret(name, value) and len(str(value)) >= _MIN_LENGTH
        }
        # The longest first: one secret may be part of another.
        self._known = sorted(secrets, key=len, reverse=True)

    def text(self, text: str) -> str:
        """Returns `text` without the secrets in it."""
        for secret in self._known:
            text = text.replace(secret, MASKED)
        for pattern in self._patterns:
            text = pattern.sub(_masked, text)
        return text

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
        return _is_secret_name(name.lower(), self._names)


# The configurations of a run, its sources and the other trials of its sweep have the same keys.
@lru_cache(maxsize=10_000)
def _is_secret_name(name: str, patterns: tuple[str, ...]) -> bool:
    """Returns whether a dotted key, one of its parts, or a key above it matches a pattern."""
    parts = _parts(name)
    if parts[-1] == "_target_":
        return False  # The name of a class reveals nothing.
    keys = [*parts, *(".".join(parts[: count + 1]) for count in range(len(parts)))]
    return any(fnmatchcase(key, pattern) for key in keys for pattern in patterns)


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
