"""Models of the Hugging Face Hub in its cache on this machine: `hf://ORG/REPO[@REVISION][/FILE]`.

The cache has a documented layout: `models--ORG--REPO/refs/REVISION` names a commit, and
`snapshots/COMMIT` holds its files. It is read without a library or a network. What it lacks is
downloaded if `huggingface_hub`, the extra `hub`, is installed and `HF_HUB_OFFLINE` is not set.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from runner.checkpoints.formats import ADAPTER_CONFIG
from runner.errors import CheckpointError, nearest

SCHEME = "hf://"
_ADDRESS = re.compile(
    SCHEME + r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^/@]+))?(/(?P<file>[^@]+?))?/?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
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
    """Returns the path of the file, or of the snapshot's directory, that an address stands for.

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
    repo, revision = match["repo"], unquote(match["revision"] or "main")
    path = _cached(repo, revision, match["file"])
    if path is None and _can_download():
        path = _downloaded(address, repo, revision, match["file"])
    if path is None:
        raise _not_cached(address, repo)
    return str(path)


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    home = os.environ.get("HF_HOME") or os.path.join(home, "huggingface")
    return Path(os.path.expanduser(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")))


def _folder(repo: str) -> Path:
    return _cache() / f"models--{repo.replace('/', '--')}"


def _cached(repo: str, revision: str, file: str | None) -> Path | None:
    commit = revision
    reference = _folder(repo) / "refs" / revision
    if not _COMMIT.fullmatch(revision) and reference.is_file():
        commit = reference.read_bytes()[:1024].decode(errors="replace").strip()
    if not _COMMIT.fullmatch(commit):
        return None
    snapshot = _folder(repo) / "snapshots" / commit
    names = _PREFERRED if file is None else (file,)
    return next((snapshot / name for name in names if (snapshot / name).exists()), None)


def _is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true")


def _can_download() -> bool:
    return not _is_offline() and importlib.util.find_spec("huggingface_hub") is not None


def _downloaded(address: str, repo: str, revision: str, file: str | None) -> Path | None:
    hub: Any = importlib.import_module("huggingface_hub")
    try:
        commit = hub.HfApi().model_info(repo, revision=revision).sha
        names = hub.HfApi().list_repo_files(repo, revision=commit)
        wanted = file or next((name for name in _PREFERRED if name in names), None)
        if wanted is None:
            return None
        patterns = [wanted]
        if wanted.endswith(".json"):  # Its shards: `model-00001-of-00002.safetensors`, ...
            patterns.append(f"{wanted.partition('.')[0]}[-_][0-9]*")
        snapshot = hub.snapshot_download(
            repo, revision=commit, allow_patterns=patterns, cache_dir=str(_cache())
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError.of(
            f"{address} cannot be downloaded",
            (str(error).splitlines() or [type(error).__name__])[0],
            "correct the address, or download it where there is a network: hf download REPO",
        ) from error
    path = Path(snapshot, wanted)
    return path if path.exists() else None


def _not_cached(address: str, repo: str) -> CheckpointError:
    folders = _cache().glob("models--*--*")
    cached = ["/".join(folder.name.split("--")[1:3]) for folder in folders]
    snapshots = [path.name for path in (_folder(repo) / "snapshots").glob("*")]
    cause = f"{_cache()} has no such file of the commits {', '.join(snapshots)}"
    if not snapshots:
        cause = f"{_cache()} holds no files of {repo}"
    return CheckpointError.of(
        f"{address} is not in the cache of the Hugging Face Hub",
        cause,
        f"hf download {repo}, or "
        + ("unset HF_HUB_OFFLINE" if _is_offline() else "install huggingface_hub")
        + " to have it downloaded",
        tuple(SCHEME + name for name in nearest(repo, cached)),
    )
