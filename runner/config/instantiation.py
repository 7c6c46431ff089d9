"""Instantiates `_target_` entries of the configuration, and their references to objects.

A reference, `${graph:NAME}` or `${run:NAME}`, stands for an object that exists only once the graph
is built; `${python:NAME}` for one of the process that called `runner.fit`.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import OmegaConf

from runner.config.keys import leaves
from runner.errors import (
    ConfigError,
    Problem,
    RunnerError,
    described_type,
    nearest,
    ranked,
    similar,
)
from runner.system.user_code import located, raised, staying

logger = logging.getLogger(__name__)

# Hydra logs an error besides raising it, and unhandled log records are printed.
logging.getLogger("hydra").addHandler(logging.NullHandler())

_HYDRA_KEYS = ("_target_", "_partial_", "_args_", "_recursive_", "_convert_")
KINDS = ("graph", "run", "python")
# The objects of kind `python`: what a Python call gives to its run, by name.
_PYTHON_OBJECTS: dict[str, Any] = {}
# Marks what is so by default, as a model or another `_target_` may replace it.
DEFAULT = "default"
_REFERENCE = re.compile(rf"\$\{{({'|'.join(KINDS)}):([^}}]+)\}}")


def register_resolvers() -> None:
    """Makes `${default:VALUE}` a value, and `${graph:NAME}` and its relatives their own spelling.

    A resolved configuration can so be printed, hashed, recorded and composed again; only
    `build_target` replaces the references by objects.
    """
    for kind in KINDS:
        OmegaConf.register_new_resolver(
            kind, lambda name, kind=kind: f"${{{kind}:{name}}}", replace=True
        )
    OmegaConf.register_new_resolver(DEFAULT, lambda value: value, replace=True)


class References:
    """The objects that the references in a configuration stand for.

    Args:
      names: kind (`graph` or `run`) -> name -> object.
      find: looks up another name of kind `graph`; returns None if there is no such object.
    """

    def __init__(
        self, names: Mapping[str, Mapping[str, Any]], find: Callable[[str], Any] = lambda name: None
    ) -> None:
        self._names, self._find = names, find

    def also(self, kind: str, names: Mapping[str, Any]) -> References:
        """Returns these references with the names of another kind added."""
        return References({**self._names, kind: names}, self._find)

    def problems(self, key: str, node: Any) -> list[Problem]:
        """Returns a problem for each reference in a node that is unknown or part of a string."""
        problems = []
        for place, string in _strings(key, node):
            whole = _REFERENCE.fullmatch(string)
            parts = _REFERENCE.findall(string)
            if whole is None and not all(isinstance(self._look_up(*part), str) for part in parts):
                cause = "a reference stands for an object, which cannot be part of a string"
                remedy = "make the reference the whole value"
                problems.append(Problem(f"{place} is {string}", cause, remedy))
            elif whole is not None and self._look_up(*whole.groups()) is None:
                kind, name = whole.groups()
                names = nearest(name, self._names.get(kind, {}), 5)
                cause, remedy = f"there is no such name in the {kind}", ""
                if kind == "python":
                    cause = "the object was in the process that called runner.fit"
                    remedy = (
                        "repeat that call with overrides={'mode': ...}; or name a function or "
                        "class of a module, by `_target_`"
                    )
                problems.append(Problem(f"{place} is {string}", cause, remedy, names))
        return problems

    def resolve(self, value: Any) -> Any:
        """Returns a nested value with every reference replaced by its object."""
        if isinstance(value, Mapping):
            return {name: self.resolve(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.resolve(item) for item in value)
        if not isinstance(value, str):
            return value
        reference = _REFERENCE.fullmatch(value)
        if reference:
            return self._look_up(*reference.groups())
        return _REFERENCE.sub(lambda match: self._look_up(*match.groups()), value)

    def _look_up(self, kind: str, name: str) -> Any:
        objects = _PYTHON_OBJECTS if kind == "python" else self._names.get(kind, {})
        if name in objects:
            return objects[name]
        return self._find(name) if kind == "graph" else None


@contextmanager
def python_objects(objects: Mapping[str, Any]) -> Iterator[None]:
    """Makes `${python:NAME}` stand for objects inside the block."""
    _PYTHON_OBJECTS.update(objects)
    try:
        yield
    finally:
        for name in objects:
            _PYTHON_OBJECTS.pop(name, None)


def call_object(function: Callable[..., Any], **arguments: Any) -> Any:
    """Calls a function: the `_target_` of a function that no module has, `${python:NAME}`."""
    return function(**arguments)


CALL = f"{__name__}.{call_object.__name__}"


def given_object(value: Any) -> Any:
    """Returns an object: the `_target_` of one that is handed over, `${python:NAME}`."""
    return value


GIVEN = f"{__name__}.{given_object.__name__}"


def has_reference(node: Any) -> bool:
    """Whether a nested value holds a reference."""
    return any(_REFERENCE.search(string) for _, string in _strings("", node))


def _strings(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yields (key, string) of every string in a nested value."""
    return ((name, item) for name, item in leaves(key, value) if isinstance(item, str))


def build_target(key: str, node: Mapping[str, Any], references: References | None = None) -> Any:
    """Calls, or for `_partial_: true` prepares, the node's `_target_` with its arguments.

    Lists and mappings among the arguments are passed as plain `list` and `dict`; a mapping with a
    `_target_` is built first.

    Args:
      key: the node's dotted key, for the messages.
      node: a mapping with `_target_` and the arguments.
      references: the objects for `${graph:NAME}` and `${run:NAME}` among the arguments.

    Raises:
      ConfigError: when there is no such target, its arguments do not fit its signature, it refuses
        them with a ValueError or TypeError, or a reference names nothing.
      UserCodeError: when it raises another error.
    """
    references = references or References({})
    check_target(key, node, references)
    try:
        register_resolvers()
        with staying():
            return instantiate({"_convert_": "all", **_resolving(node, references)})
    except SystemExit as error:
        raise raised(key, error) from error
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, RunnerError):
            raise cause from None
        if not isinstance(cause, ValueError | TypeError):
            raise raised(key, cause or error) from cause
        called, arguments = _called(node)
        refused = "refuses its arguments" if arguments else "fails"
        raise ConfigError.of(f"{key}: {called} {refused}", located(cause)) from error


def name_of(node: Mapping[str, Any]) -> str:
    """Returns what messages call the target of a node."""
    return _called(node)[0]


def _called(node: Mapping[str, Any]) -> tuple[str, set[str]]:
    """Returns the name of what a node calls, and the names of its arguments."""
    arguments = {name for name in node if name not in _HYDRA_KEYS[:2]}
    argument = {CALL: "function", GIVEN: "value"}.get(node["_target_"], "")
    reference = _REFERENCE.fullmatch(str(node.get(argument)))
    if reference is None:
        return str(node["_target_"]), arguments
    return reference[2].partition("@")[0], arguments - {argument}


def check_target(key: str, node: Mapping[str, Any], references: References) -> None:
    """Checks a node without calling its target.

    Raises:
      ConfigError: as `build_target` does, except for what the target itself refuses.
    """
    check_signature(key, node)
    problems = references.problems(key, node)
    if problems:
        raise ConfigError(*problems)


def _resolving(node: Any, references: References) -> Any:
    """Returns the node with each target that takes references wrapped in `call_resolving`.

    Hydra copies and converts arguments, which tensors and sessions do not survive.
    """
    if isinstance(node, list):
        return [_resolving(item, references) for item in node]
    if not isinstance(node, Mapping):
        return node
    resolving = {name: _resolving(item, references) for name, item in node.items()}
    if "_target_" in node and has_reference(node):
        resolving["_target_"] = f"{__name__}.{call_resolving.__name__}"
        resolving |= {"_called_": node["_target_"], "_references_": references}
    return resolving


def call_resolving(*args: Any, _called_: str, _references_: References, **kwargs: Any) -> Any:
    """Calls the target at the path `_called_` with its references replaced by objects."""
    return get_object(_called_)(*_references_.resolve(args), **_references_.resolve(kwargs))


def check_signature(key: str, node: Any) -> None:
    """Checks a node, and all nodes with a target among its arguments.

    Raises:
      ConfigError: when there is no such target, or its arguments do not fit its signature.
    """
    if isinstance(node, Mapping):
        for name, value in node.items() if node.get("_recursive_", True) else ():
            check_signature(f"{key}.{name}", value)
        if "_target_" in node:
            _check_arguments(key, node, locate_target(key, node))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            check_signature(f"{key}.{index}", value)


def locate_target(key: str, node: Mapping[str, Any]) -> Any:
    """Returns the class or function that a node's `_target_` names.

    Raises:
      ConfigError: when there is no such class or function.
      UserCodeError: when its module calls `sys.exit`.
    """
    path = str(node["_target_"])
    remedy = (
        "name an importable class or function; the current directory must be on the Python path "
        "for your own modules"
    )
    try:
        with staying():
            target = get_object(path)
    except SystemExit as error:
        raise raised(f"{key}._target_", error) from error
    except Exception as error:
        problem = Problem(f"{key}._target_ is {path!r}", _reason(error), remedy, _similar(path))
        raise ConfigError(problem) from error
    if not callable(target):
        raise ConfigError.of(
            f"{key}._target_ is {path!r}",
            f"that is {described_type(target)}, which cannot be called",
            remedy,
        )
    return target


def _reason(error: BaseException) -> str:
    """Returns in one line why an import failed, and where if that is in the imported code."""
    cause = error.__cause__
    if cause is None or isinstance(cause, ImportError | AttributeError | SyntaxError):
        return str(cause or error).splitlines()[0]
    return located(cause)


def _similar(path: str) -> tuple[str, ...]:
    """Returns paths with a similar name in place of the first part of `path` that is wrong."""
    parts = path.split(".")
    for count in range(len(parts) - 1, 0, -1):
        value: Any = sys.modules.get(".".join(parts[:count]))
        if value is not None:
            while count < len(parts) - 1 and hasattr(value, parts[count]):
                value = getattr(value, parts[count])
                count += 1
            public = (name for name in dir(value) if not name.startswith("_"))
            return tuple(".".join([*parts[:count], name]) for name in similar(parts[count], public))
    return ()


def _check_arguments(key: str, node: Mapping[str, Any], target: Any) -> None:
    try:
        parameters = inspect.signature(target).parameters
    except (ValueError, TypeError):  # A builtin; calling it reports what does not fit.
        return
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    problems = [
        Problem(
            f"{key}.{name} is not an argument of {node['_target_']}",
            "it is misspelt, or belongs elsewhere",
            choices=ranked(name, named),
        )
        for name in node
        if name not in _HYDRA_KEYS and name not in named and not takes_any
    ]
    if not node.get("_partial_") and not node.get("_args_"):
        needed = [name for name in named if parameters[name].default is inspect.Parameter.empty]
        lacking = [name for name in needed if name not in node]
        problems += _without_value(key, target, lacking, path=str(node["_target_"]))
    if problems:
        raise ConfigError(*problems)


def _without_value(key: str, target: Any, names: Sequence[str], *, path: str) -> Iterator[Problem]:
    """Yields the problems of arguments that have neither a value nor a default."""
    # The runner calls a loss and a metric; a class is called to create one.
    if (
        names
        and key.startswith(("loss", "metrics.", "weighted_metrics."))
        and not inspect.isclass(target)
    ):
        yield Problem(
            f"{key} calls {path} without {' and '.join(names)}",
            "the function is to be called with each batch, not with the configuration",
            f"add `_partial_: true` to {key}: +{key}._partial_=true",
        )
        return
    for name in names:
        yield Problem(f"{key}.{name} has no value", f"{path} needs it")
