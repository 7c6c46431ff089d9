"""The part of `--help` that lists the keys, their meanings and, in an experiment, their values.

The template of Hydra's help, `conf/hydra/help/runner.yaml`, asks for these lines by
`${runner_help:}`, which is resolved in the composed configuration.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from runner.config.reference import Key, first_sentence, in_yaml, sections

_RESOLVER = "runner_help"
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
_WIDTH, _LEFT, _INDENT = 99, 35, 6


def register_help() -> None:
    """Makes `${runner_help:}` known to OmegaConf; calling it again changes nothing."""
    if not OmegaConf.has_resolver(_RESOLVER):
        OmegaConf.register_new_resolver(_RESOLVER, _help)


def _help(_root_: Any) -> str:
    width = min(shutil.get_terminal_size((_WIDTH + 1, 24)).columns - 1, _WIDTH)
    plain: Any = OmegaConf.to_container(_root_, resolve=False)
    pairs = _frequent() if OmegaConf.is_missing(_root_, "name") else _of_experiment(plain)
    lines = [line for left, right in pairs for line in _row(left, right, width)]
    # Hydra substitutes `$NAME` in what it prints.
    return "\n".join(lines).replace("$", "$$")


def _row(left: str, right: str, width: int) -> Iterator[str]:
    """Yields a key with its meaning beside it, or below it in a narrow terminal."""
    beside = width >= 2 * _LEFT
    indent = _LEFT if beside else _INDENT
    text = textwrap.wrap(right, width - indent, break_on_hyphens=False)
    first = f"  {left}"
    if text and beside and len(first) < _LEFT - 1:
        first = f"{first:{_LEFT}}{text.pop(0)}"
    yield first
    yield from (f"{' ' * indent}{line}" for line in text)


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
        scaffolds = {str(index): each for index, each in enumerate(scaffolds)}
    for name, key in _keys().items():
        if name.startswith("scaffolds.NAME."):
            path = name.split(".")[2:]
            given = {each: _at(config, path) for each, config in scaffolds.items()}
            given = {each: value for each, value in given.items() if value is not None}
            for each, value in (given or {"NAME": key.default}).items():
                yield from _entry(name.replace("NAME", each), value, key.summary)
        elif name != "scaffolds":
            yield from _entry(name, _at(config, name.split(".")), key.summary)


def _entry(name: str, value: Any, meaning: str) -> Iterator[tuple[str, str]]:
    """Yields a key and, for a mapping that the user fills, every key below it."""
    if isinstance(value, Mapping) and value:
        yield f"{name}:", meaning
        for key, each in value.items():
            yield from _entry(f"{name}.{key}", each, "")
    else:
        yield f"{name}={in_yaml(value)}", meaning


def _at(config: Any, path: list[str]) -> Any:
    for each in path:
        config = config.get(each) if isinstance(config, Mapping) else None
    return config
