"""Secrets, replaced by `***` before anything is recorded."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from runner.config import choices
from runner.config.keys import flatten

MASKED = "***"

# A shorter value occurs by chance within other words.
_MIN_LENGTH = 5

# A sweep's values in one override: `hydra.sweeper.params={data.token: [a, b]}`.
_PARAMS = "hydra.sweeper.params"
_KEY = re.compile(r"[\w.@/]+(?=\s*['\"]?\s*:)")


@dataclass
class MaskConfig:
    """The definition of a secret, which is recorded as `***` in parameters, tags and artifacts."""

    # Globs that match whole dotted keys of the configuration, ignoring case.
    names: list[str] = field(
        default_factory=lambda: [
            "*password*",
            "*passwd*",
            "*secret*",
            "*token",
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
            r"://[^\s/@:]*:([^\s/@]+)@",
            r"(?i)(?:password|passwd|secret|token|api_?key|access_key|credential)=([^\s,;&'\"]+)",
            r"\bAKIA[0-9A-Z]{16}\b",
            r"\b(?:gh[pousr]|github_pat|glpat|hf)[_-]\w{16,}",
            r"\bsk-[\w-]{16,}",
        ],
        metadata=choices.PATTERNS,
    )


class Mask:
    """Replaces the secrets in `settings`, and in `others` such as a sweep's trials, by `***`.

    A secret is a value whose dotted name in the configuration matches one of `config.names`,
    wherever that value occurs in a string; and any part of a string that matches one of
    `config.values`.
    """

    def __init__(
        self,
        config: MaskConfig,
        settings: Mapping[str, object],
        others: Iterable[Mapping[str, object]] = (),
    ) -> None:
        self._names = [pattern.lower() for pattern in config.names]
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
        names = [name, name.removeprefix(f"{_PARAMS}.")]
        if name == _PARAMS:
            names = _KEY.findall(value)
        if any(self._is_secret(name, value) for name in names):
            return f"{key}={MASKED}"
        return self.text(override)

    def value(self, name: str, value: object) -> object:
        """Returns the value of the dotted `name` without the secrets in it."""
        if self._is_secret(name, value):
            return MASKED
        if isinstance(value, str):
            return self.text(value)
        return value

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
        if value is None or value == "" or isinstance(value, bool | dict | list):
            return False
        return any(fnmatchcase(name.lower(), pattern) for pattern in self._names)


def _masked(match: re.Match[str]) -> str:
    if not match.re.groups or match[1] is None:
        return MASKED
    start, end = match.span(1)
    whole = match[0]
    return f"{whole[: start - match.start()]}{MASKED}{whole[end - match.start() :]}"
