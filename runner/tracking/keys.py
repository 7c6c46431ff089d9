"""Names and values made to fit what MLflow accepts, reversibly where they are names."""

from __future__ import annotations

import hashlib
import posixpath
import re

MAX_KEY = 250
"""Characters that MLflow accepts in the name of a parameter, metric or tag."""

_EMPTY = "_x_"
_UNSAFE = re.compile(r"[^A-Za-z0-9_\-. :/]|_(?=x[0-9A-F]{4})")
_ESCAPED = re.compile(r"_x(10[0-9A-F]{4}|[0-9A-F]{4,5})_")


def encode_key(key: str) -> str:
    """Returns `key` in the characters that MLflow allows in names.

    A character outside letters, digits and `_-. :/` becomes `_xHHHH_`, its code point in
    hexadecimal, as in ECMA-376; so do the dots and slashes of a name that MLflow would refuse
    as a path (`a//b`, `../a`). `decode_key` gives `key` back.
    """
    if not key:
        return _EMPTY
    encoded = _escape("_") + key[1:] if key == _EMPTY else _UNSAFE.sub(_escaped, key)
    if posixpath.normpath(encoded) != encoded or encoded.startswith(("/", "..")):
        encoded = re.sub(r"[./]", _escaped, encoded)
    return encoded


def decode_key(key: str) -> str:
    """Returns the name that `encode_key` made `key` from."""
    if key == _EMPTY:
        return ""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), key)


def shorten(text: str, limit: int) -> str:
    """Returns `text` in at most `limit` characters.

    A text that is too long ends in a marker with its length and digest, so that two texts
    which differ only in what was left out remain different.
    """
    if len(text) <= limit:
        return text
    marker = f" ... [{len(text)} characters, sha256 {_digest(text)}]"
    return text[: limit - len(marker)] + marker


def shorten_key(key: str) -> str:
    """Returns the encoded `key` in at most `MAX_KEY` characters, a digest ending a long one."""
    return key if len(key) <= MAX_KEY else f"{key[: MAX_KEY - 16]}... {_digest(key)}"


def clean(text: str) -> str:
    r"""Returns `text` with lone surrogates and NUL, which no store takes, written as `\x00`."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _escape(character: str) -> str:
    return f"_x{ord(character):04X}_"


def _escaped(match: re.Match[str]) -> str:
    return _escape(match[0])
