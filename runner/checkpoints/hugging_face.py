"""Models of the Hugging Face Hub: `hf://ORG/REPO[@REVISION][/FILE]`.

`huggingface_hub`, the extra `hub`, finds them in its cache on this machine. What is not there is
downloaded unless `HF_HUB_OFFLINE` is set; a branch in the cache stays as it was downloaded.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from runner.checkpoints.recognition import ADAPTER_CONFIG
from runner.errors import CheckpointError, nearest

SCHEME = "hf://"
_ADDRESS = re.compile(
    SCHEME + r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^/@]+))?(/(?P<file>[^@]+?))?/?"
)
# Which file of a repository is its checkpoint, if the address names none: the first that is there.
_PREFERRED = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "model.weights.json",
    "model.weights.h5",
    "tf_model.h5",
    "flax_model.msgpack",
    ADAPTER_CONFIG,  # Refused with a remedy when it is opened.
)


def locate_in_cache(address: str) -> str:
    """Returns the path in the cache of the file that an address stands for, downloaded if needed.

    The path holds the commit, so that a plan pins what a branch stood for.

    Raises:
      CheckpointError: when it is not an address, or neither cached nor downloaded.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or ".." in (match["file"] or "").split("/"):
        raise CheckpointError.of(
            f"{address} is not an address of the Hugging Face Hub",
            "it has the form hf://ORG/REPO[@REVISION][/FILE]",
            "correct it, e.g. hf://google-bert/bert-base-uncased@main/model.safetensors",
        )
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise CheckpointError.of(
            f"{address} cannot be opened",
            f"the library of the Hugging Face Hub is not installed: {error}",
            "pip install 'runner[hub]', or name the file in the cache by its path",
        ) from error
    model = {"repo_id": match["repo"], "revision": unquote(match["revision"] or "main")}
    names = [match["file"]] if match["file"] else _PREFERRED
    try:
        return str(_cached(hub, model, names) or _downloaded(hub, model, names))
    except hub.errors.OfflineModeIsEnabled as error:
        raise _not_cached(hub, address, match["repo"]) from error
    except (OSError, ValueError, RuntimeError, hub.errors.HTTPError) as error:
        raise CheckpointError.of(
            f"{address} cannot be downloaded",
            (str(error).splitlines() or [type(error).__name__])[0],
            "correct the address, or download it where there is a network: hf download REPO",
        ) from error


def _cached(hub: Any, model: Mapping[str, str], names: Sequence[str]) -> Path | None:
    """Returns the first of the files that is in the cache."""
    try:
        folder = Path(hub.snapshot_download(**model, allow_patterns=[], local_files_only=True))
    except hub.errors.LocalEntryNotFoundError:
        return None
    return next((folder / name for name in names if (folder / name).exists()), None)


def _downloaded(hub: Any, model: Mapping[str, str], names: Sequence[str]) -> Path:
    held = {file.rfilename for file in hub.HfApi().model_info(**model).siblings}
    name = next((name for name in names if name in held), None)
    if name is None:
        raise ValueError(f"it holds no {' or '.join(names)}")
    patterns = [name]
    if name.endswith(".json"):  # Its shards: `model-00001-of-00002.safetensors`, ...
        patterns.append(f"{name.partition('.')[0]}[-_][0-9]*")
    return Path(hub.snapshot_download(**model, allow_patterns=patterns), name)


def _not_cached(hub: Any, address: str, repo: str) -> CheckpointError:
    cache = hub.constants.HF_HUB_CACHE
    commits: dict[str, list[str]] = {}
    if Path(cache).is_dir():
        for held in hub.scan_cache_dir().repos:
            commits[held.repo_id] = sorted(revision.commit_hash for revision in held.revisions)
    return CheckpointError.of(
        f"{address} is not in the cache of the Hugging Face Hub",
        f"{cache} has no such file of the commits {', '.join(commits[repo])}"
        if repo in commits
        else f"{cache} holds no files of {repo}",
        f"hf download {repo}, or unset HF_HUB_OFFLINE to have it downloaded",
        tuple(SCHEME + name for name in nearest(repo, commits)),
    )
