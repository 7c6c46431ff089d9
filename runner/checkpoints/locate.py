"""Resolves a path, and a choice among the checkpoints there, to the checkpoints to open."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from runner.checkpoints import contents, files, hugging_face
from runner.checkpoints.contents import BEST, BEST_RECORD, CHECKPOINTS, NoCheckpointError
from runner.checkpoints.files import cached
from runner.checkpoints.recognition import (
    denied,
    is_orbax,
    is_saved_model,
    require_no_adapter,
    split_mapping,
)
from runner.config.choices import MLFLOW_SCHEMES
from runner.errors import CheckpointError, Problem

LATEST, BEST_OF_RUN = "latest", "best"
_ORBAX = "orbax:"  # Optional: the format is recognised.
_ONE_SLASH = re.compile(r"(\w{2,}):/([^/].*)")


def checkpoint_paths(
    checkpoint: str,
    which: str = LATEST,
    average: str | Sequence[str | int] | None = None,
    artifacts: Artifacts | None = None,
) -> list[str]:
    """Returns the paths for `open_reader`; several paths are to be averaged.

    Args:
      checkpoint: a run directory, a directory of checkpoints, a SavedModel, a model that MLflow
        saved, a bundle's prefix, a file, a mapping in a PyTorch file (`FILE#MAPPING`), an `hf://`
        address, or an MLflow URI; `~` is the user's home.
      which: `latest`, `best` by the objective that a run recorded, or a step.
      average: None; `last N`, the N newest checkpoints of the directory; or a list whose entries
        are steps in the directory, `latest`, `best`, or other checkpoints.
      artifacts: downloads the artifact of an MLflow URI.

    Raises:
      NoCheckpointError: when there is no checkpoint at `checkpoint`.
      CheckpointError: when the chosen one is missing, or a choice is not valid.
    """
    path = _on_disk(checkpoint, artifacts)
    with _readable(path):
        if average is None:
            return [_chosen(path, which)]
        if isinstance(average, str):
            return _last(path, int(average.split()[-1]))
        return _listed(path, average, artifacts)


def latest_checkpoint(directory: str) -> str | None:
    """Returns the newest checkpoint in a directory as `tf.train.latest_checkpoint`, or None.

    Raises:
      CheckpointError: when the directory's `checkpoint` file is damaged or names missing files.
    """
    with _readable(directory):
        return contents.newest(directory) if files.is_directory(directory) else None


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise denied(path, error) from error


def _on_disk(checkpoint: str, artifacts: Artifacts | None) -> str:
    if checkpoint.startswith(hugging_face.SCHEME):
        address, separator, mapping = checkpoint.partition("#")
        return f"{hugging_face.locate_in_cache(address)}{separator}{mapping}"
    if not is_mlflow_uri(checkpoint):
        # A shell does not expand the tilde in `checkpoint=~/model`.
        return os.path.expanduser(checkpoint.removeprefix(_ORBAX))
    if artifacts is None:
        raise CheckpointError.of(
            f"{checkpoint} is in MLflow, and no tracking store is given",
            remedy="name the store that has it: tracking.uri, $MLFLOW_TRACKING_URI or --tracking",
        )
    return downloaded(checkpoint, artifacts)


def _chosen(path: str, which: str) -> str:
    if which == LATEST:
        return _latest(path)
    if which == BEST_OF_RUN:
        return _best(path)
    if which.isdecimal():
        return _step(path, int(which))
    raise CheckpointError.of(f"which is {which!r}", remedy="set it to latest, best or a step")


def _latest(path: str) -> str:
    file, mapping = split_mapping(path)
    if mapping and files.is_directory(file):
        return _chosen(file, mapping)
    if mapping:
        return f"{_latest(file)}#{mapping}"
    prefix = path.removesuffix(".index")
    if files.exists(f"{prefix}.index"):
        return prefix
    if os.path.basename(path) == contents.STATE_FILE and files.is_file(path):
        return _latest(os.path.dirname(path) or ".")
    if contents.is_checkpoint(path) or _is_one_directory(path):
        return path
    if not files.is_directory(path):
        parent, name = os.path.split(path)
        shards = contents.v1_shards(parent, name)
        if shards is None:
            raise _nothing(path)
        return os.path.join(parent, shards)
    require_no_adapter(path)
    if contents.is_run(path):
        return _latest(os.path.join(path, CHECKPOINTS))
    model = contents.in_mlflow_model(path)
    if model is not None:
        return _latest(model)
    newest = contents.newest(path)
    if newest is not None:
        return newest
    candidates = contents.in_directory(path)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise CheckpointError.of(
            f"the directory {path} holds {len(candidates)} checkpoints",
            "no `checkpoint` file names the newest",
            "name one of them",
            candidates,
        )
    checkpoints = os.path.join(path, CHECKPOINTS)
    if files.is_directory(checkpoints):  # A run's files in MLflow lack the record of the run.
        return _latest(checkpoints)
    raise _nothing(path)


def _is_one_directory(path: str) -> bool:
    return files.is_directory(path) and (is_saved_model(path) or is_orbax(path))


def _best(path: str) -> str:
    """Finds the best checkpoint from a run directory, or from one of the two directories in it."""
    parent = os.path.dirname(path.rstrip("/"))
    folders = [os.path.join(path, BEST), path, os.path.join(parent, BEST)]
    records = [os.path.join(folder, BEST_RECORD) for folder in folders]
    record = next((file for file in records if files.is_file(file)), None)
    if record is None:
        raise CheckpointError.of(
            f"no best checkpoint is recorded for {path}",
            f"a run records it in {BEST}/{BEST_RECORD} when it evaluates, which is not there",
            "choose which=latest or a step",
            tuple(map(str, _steps(path))),
        )
    try:
        step = json.loads(files.read_text(record))["step"]
        return contents.steps(os.path.dirname(record))[step]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError.of(
            f"{record} does not name a checkpoint beside it",
            f"{type(error).__name__}: {error}",
            "restore the files from a copy, or choose a step",
            tuple(map(str, _steps(path))),
        ) from error


def _step(path: str, step: int) -> str:
    checkpoints = _steps(path)
    if step in checkpoints:
        return checkpoints[step]
    if not files.exists(path):
        raise _nothing(path)
    nearby = sorted(checkpoints, key=lambda other: abs(other - step))[:5]
    raise CheckpointError.of(
        f"{path} holds no checkpoint of step {step}",
        "no name in it ends in that step" if checkpoints else "it holds no numbered checkpoint",
        "choose one of the steps that are there",
        tuple(map(str, nearby)),
    )


def _steps(path: str) -> dict[int, str]:
    """Returns step -> checkpoint for a directory, or for a run with its best checkpoint."""
    if not files.is_directory(path):
        return {}
    checkpoints = contents.steps(path)
    if contents.is_run(path) or not checkpoints:
        for folder in (BEST, CHECKPOINTS):
            checkpoints |= contents.steps(os.path.join(path, folder))
    return checkpoints


def _last(path: str, count: int) -> list[str]:
    if not files.is_directory(path) and not contents.is_checkpoint(path):
        raise _nothing(path)
    folder = os.path.join(path, CHECKPOINTS) if contents.is_run(path) else path
    checkpoints = contents.in_order(folder)
    if len(checkpoints) < count:
        raise CheckpointError.of(
            f"average is `last {count}`, and {folder} holds {len(checkpoints)} checkpoints",
            "an average of fewer was not asked for",
            "set a smaller number, or name a directory with more checkpoints",
            tuple(checkpoints),
        )
    return checkpoints[-count:]


def _listed(path: str, average: Sequence[str | int], artifacts: Artifacts | None) -> list[str]:
    paths: list[str] = []
    problems: list[Problem] = []
    for entry in average:
        choice = str(entry)
        with CheckpointError.within(collected=problems):
            if choice.isdecimal() or choice in (LATEST, BEST_OF_RUN):
                paths.append(_chosen(path, choice))
            else:
                paths.append(_latest(_on_disk(choice, artifacts)))
    if problems:
        raise CheckpointError(*problems)
    return paths


def _nothing(path: str) -> NoCheckpointError:
    if files.is_directory(path):
        state = f"the directory {path} holds no checkpoint"
        cause = "no `checkpoint` file, SavedModel or file of a known format is in it"
        choices = contents.folders_with_checkpoints(path)
        if not files.names_in(path):
            cause = "it is empty"
    else:
        state, cause = f"there is no checkpoint at {path}", "neither a directory nor a prefix"
        if files.is_remote(path):
            try:
                files.stamp(path)
            except OSError as error:  # May say more, e.g. `403, message='Forbidden'`.
                named, _, reason = str(error).partition(": ")
                cause = reason if named == path else cause
        parent, name = os.path.split(path.rstrip("/"))
        names = get_close_matches(name, _siblings(parent))
        choices = tuple(os.path.join(parent, name) for name in names)
        if address := _ONE_SLASH.fullmatch(path):  # As pathlib writes an address.
            cause, choices = "an address has two slashes", (f"{address[1]}://{address[2]}",)
    return NoCheckpointError.of(state, cause, "correct the path", choices)


def _siblings(parent: str) -> list[str]:
    """Returns the names in `parent` of possible checkpoints: directories, prefixes, files."""
    names = files.names_in(parent) if files.is_directory(parent or ".") else []
    folders = [name for name in names if files.is_directory(os.path.join(parent, name))]
    return folders + [os.path.basename(path) for path in contents.in_directory(parent)]


_CONTENT, _PATH = "content", "path"


class Artifacts(Protocol):
    """The part of an MLflow store that holds files."""

    @property
    def store(self) -> str:
        """The store's address, which distinguishes equal URIs in two stores."""

    def pin(self, uri: str) -> str:
        """Returns a URI that cannot move, e.g. a model's version for its alias.

        Raises:
          RunnerError: when there is no such model or run.
        """

    def download(self, uri: str, folder: str) -> str:
        """Copies an artifact into a folder and returns the path of the copy.

        Raises:
          RunnerError: when it cannot be downloaded.
        """


def is_mlflow_uri(checkpoint: str) -> bool:
    """Returns whether `checkpoint` is `runs:/...`, `models:/...` or `mlflow-artifacts:...`."""
    return checkpoint.startswith(MLFLOW_SCHEMES)


def downloaded(uri: str, artifacts: Artifacts) -> str:
    """Returns the path of an artifact's copy in the cache; downloads it the first time.

    An alias such as `models:/name@champion` is looked up every time, because it can move.

    Raises:
      RunnerError: when the artifact is not there.
    """
    pinned = artifacts.pin(uri)

    def fill(folder: Path) -> None:
        content = folder / _CONTENT
        content.mkdir()
        path = artifacts.download(pinned, str(content))
        (folder / _PATH).write_text(os.path.relpath(path, content))

    folder = cached(f"{artifacts.store} {pinned}", fill)
    return os.path.normpath(folder / _CONTENT / (folder / _PATH).read_text())
