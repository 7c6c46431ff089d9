"""An experiment from the arguments of a Python call, and its file."""

from __future__ import annotations

import functools
import inspect
import operator
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf

from runner.config.instantiation import CALL, GIVEN
from runner.config.spelling import quoted

_MAIN = "__main__"
_PLAIN = (str, int, float, bool, type(None))
_UNREADABLE = re.compile(r"[^\w.@]", re.ASCII)
_WORDS = ("nan", "inf", "null", "true", "false")


@dataclass
class FitExperiment:
    """The experiment of a call of `runner.fit`; the methods return nodes of its configuration.

    Attributes:
      digest: returns what tells data apart.
      objects: name -> object that `${python:NAME}` stands for, in this process alone.
      bound: the keys whose values another process cannot import, each with the reason.
    """

    digest: Callable[[Any], str]
    objects: dict[str, Any] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)

    def node(
        self, model: Mapping[str, Any], data: Mapping[str, Any], *, name: str, seed: int
    ) -> dict[str, Any]:
        """Returns the experiment of a model, and its data."""
        arguments = {key: self.value(f"data.{key}", value) for key, value in data.items()}
        return {
            "name": name,
            "seed": seed,
            "data": {"_target_": "runner.inputs.FitData", **arguments, "seed": "${seed}"},
            "model": model,
        }

    def built_by(self, function: Callable[..., Any]) -> dict[str, Any]:
        """Returns the node of a function that returns a compiled model.

        The defaults of its arguments are parameters of the run and can be swept over.
        """
        return {**_defaults(function), **self.call("model", function)}

    def handed_over(self, key: str, value: Any, name: str) -> dict[str, Any]:
        """Returns the node of an object that is handed over; `name` tells it from others."""
        kind = type(value).__name__
        self.bound[key] = f"{kind} in memory; give a function of a module that returns it"
        return {"_target_": GIVEN, "value": self._reference(name, value)}

    def callbacks(self, callbacks: Sequence[Any]) -> dict[str, Any]:
        """Returns name -> node of Keras callbacks."""
        nodes: dict[str, Any] = {}
        for callback in callbacks:
            name = type(callback).__name__
            name += f"_{len(nodes)}" * (name in nodes)
            self.bound[f"callbacks.{name}"] = "in memory; name its class, and its arguments"
            nodes[name] = {"_target_": GIVEN, "value": self._reference(name, callback)}
        return nodes

    def value(self, key: str, value: Any) -> Any:
        """Returns a node for a value: itself if it is plain, a target, or a reference to it."""
        if _is_plain(value):
            return value
        if callable(value) and not hasattr(value, "element_spec") and _named(value):
            return {**self.call(key, value), "_partial_": True}
        kind = type(value).__name__
        self.bound[key] = f"{kind} in memory; give a function of a module that returns it"
        return self._reference(f"{key.rpartition('.')[2]}@{self.digest(value)}", value)

    def call(self, key: str, function: Callable[..., Any]) -> dict[str, Any]:
        """Returns a node that calls a function, or a `functools.partial` with plain keywords."""
        arguments: Mapping[str, Any] = {}
        partial = function if isinstance(function, functools.partial) else None
        if partial is not None and not partial.args and _is_plain(dict(partial.keywords)):
            function, arguments = partial.func, partial.keywords
        if _named(function):
            if function.__module__ == _MAIN:
                name = function.__qualname__
                self.bound[key] = f"{name} is in the script itself; move it to a module"
            return {"_target_": f"{function.__module__}.{function.__qualname__}", **arguments}
        name = str(getattr(function, "__name__", type(function).__name__)).strip("<>")
        self.bound[key] = f"a {name} that no module has; make it a function of a module"
        return {"_target_": CALL, "function": self._reference(name, function), **arguments}

    def _reference(self, name: str, value: Any) -> str:
        # OmegaConf reads no other characters in a reference, and some words as numbers.
        name = _UNREADABLE.sub("_", name)
        if name.lower() in _WORDS or not name[:1].isalpha():
            name = f"_{name}"
        count = sum(known.partition("+")[0] == name for known in self.objects)
        name = f"{name}+{count}" if count else name
        self.objects[name] = value
        return f"${{python:{name}}}"

    def text(self, node: Mapping[str, Any]) -> str:
        """Returns the file of the experiment."""
        name = node["name"]
        lines = [
            "# @package _global_",
            f"# Written by runner.fit. As conf/experiment/{name}.yaml it runs by",
            f"#   python -m runner --config-dir conf {shlex.quote(f'+experiment={quoted(name)}')}",
        ]
        if self.bound:
            lines.append("# once another process has these:")
            lines += [f"#   {key}: {reason}" for key, reason in self.bound.items()]
        return "\n".join(lines) + f"\n{OmegaConf.to_yaml(OmegaConf.create(dict(node)))}"


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns argument -> plain default of a function."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.default is not parameter.empty
        and _is_plain(parameter.default)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str | int) and _is_plain(item) for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return isinstance(value, list | tuple) and all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _named(function: Any) -> bool:
    """Whether a module has the function or class under its name."""
    module = sys.modules.get(str(getattr(function, "__module__", None)))
    try:
        return operator.attrgetter(getattr(function, "__qualname__", ""))(module) is function
    except AttributeError:
        return False
