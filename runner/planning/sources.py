"""Opens the checkpoints that scaffolds name, and outside a run reads the scaffolds themselves."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.checkpoints import files
from runner.checkpoints.contents import NoCheckpointError
from runner.checkpoints.locate import LATEST, Artifacts, checkpoint_paths
from runner.checkpoints.open import AverageReader, averaged, open_reader
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec
from runner.config.choices import EXPERIMENT, OPTIONAL
from runner.config.key_problems import unresolved
from runner.config.scaffold_reading import read_restoration, read_scaffolds
from runner.config.schema import RestorationConfig, ScaffoldConfig
from runner.errors import CheckpointError, ConfigError, Problem, TrackingError
from runner.planning.plan import LocatedSources
from runner.runs.provenance import Origin, origin

# YAML of this size takes ten seconds.
_MAX_YAML = 1 << 20


@dataclass(frozen=True)
class Source:
    """The checkpoint of a scaffold, or the mean of several, which are its `origins`."""

    spec: CheckpointSpec
    origins: tuple[Origin, ...]
    reader: CheckpointReader


def open_source(
    scaffold: ScaffoldConfig, place: str, which: str | None, artifacts: Artifacts | None
) -> Source | None:
    """Returns the checkpoint of a scaffold; None when it is absent and optional.

    It is at `place`, which is the scaffold's `checkpoint` or the run directory of an experiment.

    Raises:
      CheckpointError: when it cannot be used.
      TrackingError: when the store of an MLflow URI cannot be.
    """
    try:
        paths = checkpoint_paths(place, which or LATEST, scaffold.average, artifacts)
    except NoCheckpointError as error:
        if scaffold.optional:
            return None
        raise error.or_else(OPTIONAL) from error
    readers = [open_reader(path) for path in paths]
    specs = [reader.spec() for reader in readers]
    origins = tuple(origin(str(scaffold.checkpoint), spec) for spec in specs)
    source = Source(specs[0], origins, readers[0])
    if len(readers) > 1:
        source = Source(averaged(specs), origins, AverageReader(readers))
    if scaffold.sha256 is not None:
        _require_pinned(scaffold.sha256, source.spec)
    return source


def _require_pinned(pin: str, spec: CheckpointSpec) -> None:
    """Raises a CheckpointError unless a checkpoint has this digest, or its file this SHA-256."""
    pin = pin.removeprefix("sha256:")
    digests = [spec.digest]
    if spec.digest != f"sha256:{pin}" and not files.is_remote(spec.path):
        digests += [files.digest_of_file(spec.path)] if files.is_file(spec.path) else []
    if f"sha256:{pin}" not in digests:
        raise CheckpointError.of(
            f"{spec.path} is not the checkpoint that `sha256` pins",
            f"its digest is {digests[-1]}, the pinned one sha256:{pin}",
            "name the pinned file, or pin this one where it is meant",
            (digests[0],),
        )


def open_sources(
    scaffolds: Mapping[str, ScaffoldConfig], artifacts: Artifacts | None
) -> tuple[LocatedSources, dict[str, Source]]:
    """Opens the checkpoints of scaffolds outside a run, where no experiment can be trained.

    Returns:
      The located sources with the problems of the others, and scaffold -> source.
    """
    sources: dict[str, Source] = {}

    def opened(name: str, scaffold: ScaffoldConfig) -> CheckpointSpec | None:
        place = scaffold.checkpoint
        if place is None:
            return None
        if place.startswith(EXPERIMENT):
            raise CheckpointError(_not_trained_here(place))
        source = open_source(scaffold, place, scaffold.which, artifacts)
        if source is None:
            return None
        sources[name] = source
        return source.spec

    return locate_sources(scaffolds, opened), sources


def locate_sources(
    scaffolds: Mapping[str, ScaffoldConfig],
    spec_of: Callable[[str, ScaffoldConfig], CheckpointSpec | None],
) -> LocatedSources:
    """Locates the checkpoints of scaffolds, and collects the problems of those that cannot be used.

    Args:
      scaffolds: name -> scaffold.
      spec_of: returns the spec of a scaffold's checkpoint; None where it takes none.
    """
    specs: dict[str, CheckpointSpec | None] = dict.fromkeys(scaffolds)
    problems: dict[str, list[Problem]] = {}
    for name, scaffold in scaffolds.items():
        key, unusable = f"scaffolds.{name}.checkpoint", list[Problem]()
        with CheckpointError.within(key, unusable), TrackingError.within(key, unusable):
            specs[name] = spec_of(name, scaffold)
        if unusable:
            problems[name] = unusable
    return LocatedSources(specs, problems)


def _not_trained_here(place: str) -> Problem:
    run = f"runs/{place.removeprefix(EXPERIMENT)}/001"
    return Problem(
        f"{place} names an experiment",
        "only `python -m runner` composes and trains experiments",
        f"name a run of it, for example checkpoint={run} and which=best",
    )


def read_warm_start(
    scaffolds: Any, restoration: Any = None
) -> tuple[dict[str, ScaffoldConfig], RestorationConfig]:
    """Returns the scaffolds, in order of application, and the rules for all of them.

    Args:
      scaffolds: name -> keys of a scaffold, or a `ScaffoldConfig`; a list of such keys with a
        `name`; or the path of a YAML file that holds one of these, alone or below `scaffolds`.
      restoration: a mapping or a `RestorationConfig`; by default the one in the file, if any.

    Raises:
      ConfigError: with everything that is not valid.
    """
    if isinstance(scaffolds, str | bytes | os.PathLike):
        content = _read(os.fsdecode(scaffolds))
        if isinstance(content, Mapping) and "scaffolds" in content:
            restoration = content.get("restoration") if restoration is None else restoration
            content = content["scaffolds"]
        if not content:
            cause = "the file is empty, or has an empty `scaffolds:`"
            remedy = "write it again: `runner map MODEL CHECKPOINT` prints scaffolds"
            raise ConfigError.of(f"{os.fsdecode(scaffolds)} holds no scaffold", cause, remedy)
        scaffolds = content
    configs, problems = read_scaffolds(scaffolds)
    rules, rule_problems = read_restoration(restoration or {})
    problems += rule_problems
    for name, config in configs.items():
        problems += _in_training(name, config)
    if problems:
        raise ConfigError(*problems)
    return configs, rules


def _read(where: str) -> Any:
    try:
        content = OmegaConf.load(io.StringIO(files.read_text(where, _MAX_YAML)))
        return OmegaConf.to_container(content, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(unresolved(error)) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError.of(
            f"{where} cannot be read as YAML",
            " ".join(str(error).split()),
            "name a file with `scaffolds:`, a mapping name -> scaffold",
        ) from error


def _in_training(name: str, scaffold: ScaffoldConfig) -> Iterator[Problem]:
    """Yields a problem for each key that only the training step of a run can honour."""
    for key, default in (("freeze_until_step", 0), ("learning_rate_multiplier", 1.0)):
        value = getattr(scaffold, key)
        if value != default:
            yield Problem(
                f"scaffolds.{name}.{key} is {value:g}",
                "a warm start only assigns values; only a run's training step uses this key",
                "delete it, or train by `python -m runner`",
            )
