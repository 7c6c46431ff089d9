"""Composes configurations through Hydra, and reports its errors as problems.

Hydra composes the command's own configuration. This module composes beside it the experiments that
checkpoints come from and the trials of a sweep. Hydra reports one mistake at a time; all mistakes
in a composed configuration are reported together, by `validation`.
"""

from __future__ import annotations

import copy
import hashlib
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from runner.config.groups import group_of, misplaced, shipped, to_add
from runner.config.hydra_messages import file_in, hydra_problem, missing_option
from runner.config.instantiation import register_resolvers
from runner.config.key_problems import bad_value, unknown_key
from runner.config.keys import annotation
from runner.config.reference_page import help_of_keys
from runner.config.schema import RunConfig, to_compose
from runner.config.spelling import spelled
from runner.errors import ConfigError, Problem, similar

_COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)
# A composition, like a run, can also raise these: OmegaConf fails itself at an override below a key
# without a value, Hydra at options that exclude each other or are no names, and a folder may not be
# readable. Files that list each other in `defaults` have no end.
RAISED = (
    *_COMPOSITION_ERRORS,
    *(ValueError, TypeError, AttributeError, AssertionError, PermissionError, RecursionError),
)

# Composes a configuration, `hydra` included, of overrides.
Compose = Callable[[Sequence[str]], DictConfig]

_FREE = re.compile(
    r"(scaffolds\.(?!\d)[^.=]+\.[^=]*|restoration\.expect(\.[^=]+)?|devices\.[^=]+|class_weight"
    r"|hydra\.sweeper\.(params|objectives|constraints)(\.[^=]+)?)="
)
_PLUGIN = re.compile(r"\+*(hydra\.(?:sweeper|launcher))=(\w+)")
_UNREAD = re.compile(r"(?P<line>LexerNoViableAltException: .*)\n(?P<caret> *)\^")
# Hydra would let `devices=2` and `devices.batch=per_device` replace each other.
_SHORT_DEVICES = re.compile(r"devices=(?=[^{\s])(?!null$)")


def compose_experiment(name: str, overrides: Sequence[str]) -> DictConfig:
    """Composes `+experiment=name` beside the configuration that Hydra is running.

    Raises:
      ConfigError: when there is no such experiment, or it does not compose.
    """
    loader = GlobalHydra.instance().config_loader()
    config_name = HydraConfig.get().job.config_name
    with reporting_composition(overrides):
        composed = _composed(loader, config_name, name, overrides=tuple(overrides))
    return copy.deepcopy(composed)


# The trials of a sweep come from the same few experiments.
@lru_cache(maxsize=32)
def _composed(
    loader: ConfigLoader, config_name: str | None, name: str, *, overrides: tuple[str, ...]
) -> DictConfig:
    """Composes an experiment; by another `loader` it may be another one."""
    return compose(
        config_name=config_name,
        overrides=[f"+experiment={name}", *map(with_plus_plus, overrides)],
    )


def with_plus_plus(override: str) -> str:
    """Puts `++` before an override of a scaffold's key, so that its YAML need not hold the key.

    Likewise of the devices, of an expectation, whose keys are names of scaffolds, of the weights of
    classes, and of mappings of a sweeper. Hydra knows only the keys that the YAML holds; ours are
    checked by `validate` and the sweeper. The short form `devices=2` is written out as
    `++devices.count=2`.

    Raises:
      ConfigError: an override gives an option of a group to `hydra.sweeper` or `hydra.launcher`,
        which Hydra would take.
    """
    if plugin := _PLUGIN.fullmatch(override):
        raise ConfigError(misplaced(plugin[1], plugin[2], ""))
    if short := _SHORT_DEVICES.match(override):
        override = f"devices.count={override[short.end() :]}"
    return f"++{override}" if _FREE.match(override) else override


# What other frameworks call a key -> what it is called here.
_OTHER_NAMES = {"lr": "learning_rate", "monitor": "objective"}


@contextmanager
def running(config: DictConfig) -> Iterator[None]:
    """Makes a configuration the one that Hydra runs, from which sources are composed."""
    with _unchanged_hydra_config():
        HydraConfig.instance().set_config(config)
        yield


@contextmanager
def _unchanged_hydra_config() -> Iterator[None]:
    before = HydraConfig.instance().cfg
    try:
        yield
    finally:
        HydraConfig.instance().cfg = before


@contextmanager
def command_scope() -> Iterator[None]:
    """Lets Hydra compose the shipped configuration as for a command, and then as it did before."""
    register()
    conf = initialize_config_dir(str(shipped("conf")), "runner", version_base="1.3")
    with conf, _unchanged_hydra_config():
        yield


def compose_command(overrides: Sequence[str]) -> DictConfig:
    """Composes, within `command_scope`, as a command of these overrides does, `hydra` included.

    It becomes the configuration that Hydra runs.

    Raises:
      ConfigError: when it does not compose.
    """
    with reporting_composition(overrides):
        config = compose("config", [*map(with_plus_plus, overrides)], return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    return config


def search_path(config_dir: str | Path | None) -> list[str]:
    """Returns the override that lets Hydra find experiments in a folder; none for None."""
    if config_dir is None:
        return []
    return [f"hydra.searchpath=[{spelled(f'file://{Path(config_dir).absolute()}')}]"]


@contextmanager
def experiment_in_store(node: Mapping[str, Any]) -> Iterator[str]:
    """Lets Hydra compose an experiment that no file holds, by the name that the block gets."""
    # Hydra's grammar does not take all that an experiment may be called.
    name = f"python_{hashlib.sha256(str(node['name']).encode()).hexdigest()[:12]}"
    store = ConfigStore.instance()
    store.store(
        name=name, node=OmegaConf.create(dict(node)), group="experiment", package="_global_"
    )
    try:
        yield name
    finally:
        del store.repo["experiment"][f"{name}.yaml"]


def typed_overrides() -> list[str]:
    """Returns the overrides of Hydra's job as typed: resolved, they would hold `${oc.env:X}`."""
    overrides: Any = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return list(overrides)


def without_hydra(config: DictConfig) -> DictConfig:
    """Returns a copy of a composed configuration without the key `hydra`, as a run takes it."""
    task = copy.deepcopy(config)
    with read_write(task), open_dict(task):
        del task["hydra"]
    return task


def experiment_names() -> list[str]:
    """Returns the experiments on Hydra's search path; none outside a Hydra application."""
    hydra = GlobalHydra.instance()
    return hydra.config_loader().get_group_options("experiment") if hydra.is_initialized() else []


@contextmanager
def reporting_composition(overrides: Sequence[str] = ()) -> Iterator[None]:
    """Raises a ConfigError in place of an error of the composition of `overrides` in the block."""
    try:
        yield
    except RAISED as error:
        raise ConfigError(problem_of(error, overrides)) from error


def is_of_composition(error: BaseException) -> bool:
    """Whether one of the errors `RAISED` is about the command, and not a bug of later code."""
    if isinstance(error, _COMPOSITION_ERRORS):
        return True
    # Where a recursion ends is chance; a file is decoded by a frame of Python's.
    last = 100 if isinstance(error, RecursionError) else 2 if isinstance(error, UnicodeError) else 1
    return not {"hydra", "omegaconf"}.isdisjoint(_packages(error)[-last:])


def _packages(error: BaseException) -> list[str]:
    """Returns the packages whose code an error has passed, ending with the one that raised it."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame in frames]


def problem_of(error: BaseException, overrides: Sequence[str]) -> Problem:
    """Returns the problem that an error of the composition of `overrides` reports."""
    if isinstance(error, MissingConfigException) and (missing := missing_option(error)):
        return missing
    if isinstance(error, OverrideParseException):
        return _not_an_override(error, overrides)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return Problem(
            f"{mark.name}, line {mark.line + 1}, column {mark.column + 1} is not valid YAML",
            ", ".join(text for text in (error.context, error.problem) if text),
            "fix the file; values that begin with any of []{}*&!%@` or hold `: ` need quotes",
        )
    if isinstance(error, UnicodeDecodeError):
        line = error.object[: error.start].count(b"\n") + 1
        where = f"a byte of line {line} cannot be decoded"
        return Problem("a file of the configuration is not UTF-8", where, "save it as UTF-8")
    for cause in _chain(error):
        if isinstance(cause, OmegaConfBaseException) and cause.object_type is ChoiceSweep:
            remedy = "list all values in one"
            return Problem("an override has a choice() in a choice()", "they do not nest", remedy)
        if isinstance(cause, OmegaConfBaseException) and cause.msg is not None:
            return _refused(cause, str(error))
    if isinstance(error, RecursionError):
        return Problem(
            "the configuration has no end",
            "a file lists itself in `defaults`, itself or through others, or a value is nested "
            "hundreds of levels deep",
            "remove the entry from `defaults`, or flatten the value",
        )
    if isinstance(error, AttributeError | AssertionError) and _packages(error)[-1] == "omegaconf":
        return _below_nothing("an override is below a key that has no value")
    if problem := hydra_problem(str(error), overrides):
        return problem
    state, *rest = str(error).splitlines() or [type(error).__name__]
    return Problem(state, " ".join(line.strip() for line in rest))


def _not_an_override(error: OverrideParseException, overrides: Sequence[str]) -> Problem:
    bare = error.override.removeprefix("++")  # That `with_plus_plus` may have added.
    override = bare if bare in overrides else error.override
    lines = str(error).splitlines()
    cause = "; ".join(line for line in lines if not line.startswith(("Error parsing", "See")))
    cause = cause.replace("missing EQUAL at '<EOF>'", "it has no =")
    if unread := _UNREAD.match(str(error)):
        # The caret is below the character; the rest of the line may be a secret.
        character = unread["line"][len(unread["caret"]) :][:1]
        cause = f"the character {character!r} does not belong there"
    cause = re.sub(
        r"mismatched input ('[^A-Za-z<]') expecting .*",
        r"the character \1 does not belong there",
        cause,
    )
    remedy = (
        "write key=value to change, +key=value to add, ~key to delete; quote a value that "
        "contains any of {}[](),:=$ or is not ASCII, and the whole for your shell: 'key=\"a,b\"'"
    )
    if "while evaluating" in cause:
        remedy = (
            "for example choice(a,b), range(1,9,2), interval(0.1,1), tag(log,interval(1e-4,1)),"
            " sort(3,1), shuffle(a,b); null is a value only outside of them: key=null,1"
        )
    return Problem(f"{override!r} is not an override", cause, remedy)


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _below_nothing(state: str) -> Problem:
    """Returns the problem of an override such as `data.size=3` where nothing sets `data`."""
    return Problem(
        state,
        "no experiment sets it, or ~KEY deletes it",
        "add +experiment=NAME; with run_dir=... the run's own configuration is used",
    )


def _refused(cause: OmegaConfBaseException, text: str) -> Problem:
    """Returns the problem of a key or a value that OmegaConf does not accept."""
    key = str(cause.full_key or "the configuration")
    file = file_in(text)
    if isinstance(cause, MissingMandatoryValue):
        return _below_nothing(f"{key} has no value, and an override is below it")
    if not isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return bad_value(key, cause, file)
    if key == "experiment":
        return Problem(
            "an experiment is composed below the key 'experiment'",
            f"{f'In {file!r}: ' if file else ''}{str(cause).splitlines()[0]}",
            "make `# @package _global_` the first line of its file, without a byte order mark",
        )
    if key.startswith("hydra."):
        return Problem(f"{key} is not a key of Hydra", remedy="see --hydra-help")
    group = group_of(key)
    if annotation(key, RunConfig) is None:
        # A file of a group that is composed below the name of the group.
        option = file.removeprefix(f"{group}/") if file.startswith(f"{group}/") else None
        if group is not None:
            return misplaced(key, option or cause.value, "" if option else file)
        return unknown_key(key, f"In {file!r}: " if file else "")
    if group is not None and isinstance(cause.value, str):
        return misplaced(key, cause.value, file)
    parent, dot, name = key.rpartition(".")
    siblings = cause.parent_node if isinstance(cause.parent_node, DictConfig) else None
    entries = dict(siblings.items_ex(resolve=False)) if siblings else {}
    names = [str(sibling) for sibling in entries if sibling != "_target_"]
    other = _OTHER_NAMES.get(name)
    close = [other] if other in names else similar(name, names)
    # A plus would only lead to an argument that the target refuses.
    takes = entries.get("_target_") or parent or "the experiment"
    remedy = f"fix the name, or, if {takes} takes it, put a plus before it: +{key}=..."
    if added := to_add(key):
        remedy = f"fix the name, or choose an option of its group by {added}"
    return Problem(
        f"{key} is not set, so there is nothing to override",
        f"the experiment sets no such key below {parent}" if parent else "~KEY deletes it",
        "" if other in names else remedy,
        [f"{parent}{dot}{sibling}" for sibling in close],
    )


def default_optimizer() -> dict[str, Any]:
    """Returns the optimizer of a model that has none, and for which a configuration names none."""
    register_resolvers()
    default: Any = OmegaConf.load(shipped("conf") / "optimizer" / "default.yaml")
    plain: Any = OmegaConf.to_container(default, resolve=True)
    return dict(plain)


@cache
def register() -> None:
    """Makes the schema known to Hydra as `runner_config`; calling it again changes nothing."""
    register_resolvers()
    OmegaConf.register_new_resolver("runner_help", help_of_keys)
    store = ConfigStore.instance()
    store.store(name="runner_config", node=to_compose())
    # Hydra copies its sources, and the store with them, for each composition (a tenth of its time)
    # and each group that --help lists (0.7 s in all). It need not: the store copies what it loads.
    vars(store)["__deepcopy__"] = ConfigStore.instance
