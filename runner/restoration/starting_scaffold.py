"""A scaffold to start from, as YAML: what `python -m runner.inspect PATH --as-scaffold` prints."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import yaml

from runner.checkpoints.reader import CheckpointSpec
from runner.restoration.patterns import REGEX
from runner.restoration.variables import WARM_STARTED, StateClass

_HEAD = """\
# What {path} holds. `include` and the left sides of `rename` are names of your model: change
# them where it names a part differently, for example `encoder/cnn/: cnn/`. With the model at hand,
# `runner map MODEL {path}` finds which tensor is which variable.
"""
_UNNAMED = """\
# Left out, because the file does not tell the names of these variables; rename to
# them, each from the name in your model:
"""
# The names in a Keras weights file of a layer's variables, where it does not hold the real ones.
_NUMBERED = re.compile(r"(.*/)?vars/\d+")
_TORCH = re.compile(r"([^/]*\.)?(weight|bias|running_mean|running_var)[^/.]*")
# Batch norm's counter in PyTorch, which Keras does not have.
_TORCH_COUNT = ".num_batches_tracked"


def scaffold_yaml(path: str, spec: CheckpointSpec, classes: Mapping[str, StateClass]) -> str:
    """Returns the YAML of one scaffold that takes every weight of a checkpoint.

    `path` is the checkpoint as the user names it, `classes` the class of state of each tensor.
    """
    also = {name: alias for alias, name in spec.aliases.items()}
    names = [
        also.get(name, name)
        for name in spec.tensors
        if classes[name] in WARM_STARTED and not name.endswith(_TORCH_COUNT)
    ]
    unnamed = [name for name in names if _NUMBERED.fullmatch(name)]
    named = sorted(name for name in names if name not in unnamed)
    keys: dict[str, object] = {"checkpoint": path}
    if any(_TORCH.fullmatch(name) for name in named):
        keys["variables"] = {"include": [*dict.fromkeys(map(_torch_pattern, named))]}
        keys["convert"] = {"*": "torch"}
    else:
        keys["variables"] = {"include": [*dict.fromkeys(map(_pattern, named))]}
        keys["rename"] = {part: part for part in map(_part, named)}
    document = {"scaffolds": {scaffold_name(path): keys}}
    comments = "".join(f"#   {name}\n" for name in unnamed)
    body = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)
    return _HEAD.format(path=path) + (_UNNAMED + comments if unnamed else "") + body


def _torch_pattern(name: str) -> str:
    part, dot, _ = name.partition(".")
    return f"{part}/*" if dot else part


def _part(name: str) -> str:
    first, slash, _ = name.partition("/")
    return f"{first}{slash}"


def _pattern(name: str) -> str:
    part = _part(name)
    if re.search(r"[*?\[]", part):
        return f"{REGEX}{re.escape(part)}.*"
    return f"{part}*" if part.endswith("/") else part


def scaffold_name(path: str) -> str:
    """Returns a name for the scaffold of a checkpoint, of its file or folder."""
    stem = os.path.basename(path.rstrip("/")).partition(".")[0]
    return re.sub(r"\W+", "_", stem).strip("_") or "pretrained"
