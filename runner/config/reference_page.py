"""The configuration reference, generated from the structured configs and their comments.

`python -m runner.config.reference_page > docs/reference/configuration.md` writes it as a page of
the docs. In `--help` it is `${runner_help:}`, for which the template `conf/hydra/help/runner.yaml`
asks; there it has the values of the composed experiment, if there is one.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, get_args

from omegaconf import MISSING, OmegaConf

from runner.config.keys import ENTRIES, hints, is_enum, options, words
from runner.config.schema import RunConfig
from runner.config.value_rules import RULE, ValueRule

_HEAD = """\
# Configuration

All keys, with their types, defaults and meanings. Set a key in an experiment's file, or as
`KEY=VALUE` on the command line. `python -m runner +experiment=NAME --help` lists the values in an
experiment. [Combinations](combinations.md) lists the settings that do not go together. This page is
generated from the source by `python -m runner.config.reference_page`.
"""
# Placeholders for names that the user chooses, below keys with one entry for each name.
_NAMES = {"scaffolds": "NAME", "vocabulary": "PATTERN"}
_LONG = 60
# Keys that --help shows without an experiment, each with an example of a value.
_FREQUENT = {
    "train.steps": "2000",
    "train.evaluate_every": "500",
    "train.objective": "METRIC",
    "train.goal": "maximize",
    "seed": "1",
    "scaffolds.NAME.checkpoint": "PATH",
    "scaffolds.NAME.trainable": "false",
    "run_dir": "FOLDER",
    "tracking.uri": "http://HOST:PORT",
    "cluster.workers": "2",
}
_EXAMPLES = {
    "optimizer.learning_rate=0.1": "Arguments of the optimizer, or of the model, are keys too.",
    "~scaffolds.NAME": "A tilde deletes a key; here, the part starts from its initializers.",
    "+hook@hooks.stop=early_stopping": "A plus adds a key that the experiment does not set.",
}
# The width of lines without a terminal, and of the column of keys.
_WIDTH, _LEFT = 99, 35


@dataclass(frozen=True)
class Key:
    """One key of the configuration.

    Attributes:
      name: dotted; NAME and PATTERN in it stand for names that the user chooses.
      accepts: a description of valid values.
      default: as in YAML; empty where it has none.
      meaning: sentences in Markdown.
      choices: valid value -> its meaning, which may be empty.
    """

    name: str
    accepts: str
    default: str
    meaning: str
    choices: Mapping[str, str]

    @property
    def summary(self) -> str:
        """The first sentence of its meaning, and its choices."""
        listed = f" One of {', '.join(self.choices)}." if self.choices else ""
        return f"{first_sentence(self.meaning)}{listed}"


def first_sentence(text: str) -> str:
    """Returns a string up to its first full stop."""
    return text.partition(". ")[0].rstrip(".") + "."


@dataclass(frozen=True)
class Section:
    """The keys of one structured config, whose key is `name`; empty for the root."""

    name: str
    meaning: str
    keys: tuple[Key, ...]


@cache
def sections() -> tuple[Section, ...]:
    """Returns the whole configuration, the root first."""
    return tuple(_sections(RunConfig, ""))


def _sections(kind: Any, name: str) -> Iterator[Section]:
    comments, annotations = _comments(kind.__module__), hints(kind)
    prefix = f"{name}." if name else ""
    fields = dataclasses.fields(kind)
    keys = [
        Key(
            f"{prefix}{field.name}",
            _accepts(annotations[field.name], field.metadata.get(RULE)),
            _default(field),
            comments.get((kind.__name__, field.name), ""),
            _choices(annotations[field.name]),
        )
        for field in fields
        if not dataclasses.is_dataclass(annotations[field.name])
    ]
    yield Section(name, inspect.getdoc(kind) or "", tuple(keys))
    for field in fields:
        config = _inner(annotations[field.name], field)
        if config is not None:
            entry = f".{_NAMES[field.name]}" if field.name in _NAMES else ""
            yield from _sections(config, f"{prefix}{field.name}{entry}")


def _inner(kind: Any, field: Any) -> Any:
    """Returns the structured config that a key holds, itself or by name, or None."""
    kinds = (kind, *get_args(kind), field.metadata.get(ENTRIES))
    return next(filter(dataclasses.is_dataclass, kinds), None)


@cache
def _comments(module: str) -> Mapping[tuple[str, str], str]:
    """Returns (class, member) -> the comment above it, for the classes and enums of a module."""
    source = inspect.getsource(importlib.import_module(module))
    lines, comments = source.splitlines(), {}
    for node in ast.parse(source).body:
        for name, member, number in _members(node):
            above: list[str] = []
            while (line := lines[number - 2 - len(above)].strip()).startswith("#"):
                above.insert(0, line.lstrip("# "))
            comments[name, member] = " ".join(above)
    return comments


def _members(node: ast.stmt) -> Iterator[tuple[str, str, int]]:
    """Yields class, name and line of each member that a class or a call of `Enum` defines."""
    if isinstance(node, ast.ClassDef):
        for statement in node.body:
            if isinstance(statement, ast.Assign):
                target = statement.targets[0]
            elif isinstance(statement, ast.AnnAssign):
                target = statement.target
            else:
                continue
            yield node.name, ast.unparse(target), statement.lineno
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
        for argument in node.value.args:
            for key in argument.keys if isinstance(argument, ast.Dict) else ():
                if isinstance(key, ast.Constant) and isinstance(node.targets[0], ast.Name):
                    yield node.targets[0].id, str(key.value), key.lineno


def _accepts(kind: Any, rule: ValueRule | None) -> str:
    if rule is None or not rule.words:
        return words(kind)
    return rule.words if kind is Any else f"{words(kind)}, {rule.words}"


def _choices(kind: Any) -> Mapping[str, str]:
    for hint in filter(is_enum, (kind, *get_args(kind))):
        meanings = _comments(hint.__module__)
        return {name: meanings.get((hint.__name__, name), "") for name in options(hint)}
    return {}


def _default(field: Any) -> str:
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    return "" if value is MISSING or value == MISSING else in_yaml(value)


def in_yaml(value: object) -> str:
    """Returns a plain value or enum member in YAML's flow style; strings are not quoted."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str):
        return value or "''"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {in_yaml(item)}' for key, item in value.items())}}}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(in_yaml, value))}]"
    return json.dumps(value)


def page() -> str:
    """Returns the reference in Markdown."""
    parts = [_HEAD]
    for section in sections():
        parts.append(f"## `{section.name}`\n" if section.name else "## The experiment\n")
        parts.append(f"{section.meaning}\n")
        parts += [_entry(key) for key in section.keys]
    return "\n".join(parts)


def _entry(key: Key) -> str:
    lines = [f"### `{key.name}`", ""]
    default = f"default `{key.default}`" if key.default else "no default"
    if len(key.default) > _LONG:
        default = "default below"
    lines += [f"*{key.accepts[0].upper()}{key.accepts[1:]}; {default}.*", "", key.meaning, ""]
    for value, meaning in key.choices.items():
        lines.append(f"- `{value}`" + (f": {meaning[0].lower()}{meaning[1:]}" if meaning else ""))
    lines += [""] if key.choices else []
    if default == "default below":
        items = (item.replace("'", "''") for item in key.default.strip("[]").split(", "))
        lines += ["```yaml", *(f"- '{item}'" for item in items), "```", ""]
    return "\n".join(lines)


def help_of_keys(_root_: Any) -> str:
    """Returns the value of `${runner_help:}` in a composed configuration."""
    width = min(shutil.get_terminal_size((_WIDTH + 1, 24)).columns - 1, _WIDTH)
    plain: Any = OmegaConf.to_container(_root_, resolve=False)
    pairs = _frequent() if OmegaConf.is_missing(_root_, "name") else _of_experiment(plain)
    lines = [line for left, right in pairs for line in _row(left, right, width)]
    # Hydra substitutes `$NAME` in what it prints.
    return "\n".join(lines).replace("$", "$$")


def _row(left: str, right: str, width: int) -> Iterator[str]:
    """Yields a key with its meaning beside it, or below it if the key is long."""
    column = _LEFT if width > 2 * _LEFT else 4
    room = max(width, 2 * column) - column
    text = textwrap.wrap(right, room, break_on_hyphens=False, break_long_words=False)
    first = f"  {left}"
    if text and len(first) < column - 1:
        first = f"{first:{column}}{text.pop(0)}"
    yield first
    yield from (f"{' ' * column}{line}" for line in text)


@cache
def _keys() -> Mapping[str, Key]:
    return {key.name: key for section in sections() for key in section.keys}


def _frequent() -> Iterator[tuple[str, str]]:
    """Yields the most common keys, as they are typed, with their meanings."""
    for name in ("mode", "resume"):
        for value, meaning in _keys()[name].choices.items():
            yield f"{name}={value}", first_sentence(meaning)
    for name, value in _FREQUENT.items():
        yield f"{name}={value}", first_sentence(_keys()[name].meaning)
    yield from _EXAMPLES.items()


def _of_experiment(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields every key of a composed experiment, as it can be typed, with its meaning."""
    scaffolds = config["scaffolds"] or {}
    if isinstance(scaffolds, list):
        scaffolds = {str(index): entry for index, entry in enumerate(scaffolds)}
    for name, key in _keys().items():
        if name.startswith("scaffolds.NAME."):
            path = name.split(".")[2:]
            values = {scaffold: _at(entry, path) for scaffold, entry in scaffolds.items()}
            values = {scaffold: value for scaffold, value in values.items() if value is not None}
            for scaffold, value in (values or {"NAME": key.default}).items():
                yield from _leaves(name.replace("NAME", scaffold), value, key.summary)
        elif name != "scaffolds":
            yield from _leaves(name, _at(config, name.split(".")), key.summary)


def _leaves(name: str, value: Any, meaning: str) -> Iterator[tuple[str, str]]:
    """Yields a key and, for a mapping that the user fills, every key below it."""
    if isinstance(value, Mapping) and value:
        yield f"{name}:", meaning
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}", item, "")
    else:
        yield f"{name}={in_yaml(value)}", meaning


def _at(config: Any, path: list[str]) -> Any:
    for part in path:
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


if __name__ == "__main__":
    print(page(), end="")
