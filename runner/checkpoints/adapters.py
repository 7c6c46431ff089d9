"""LoRA adapters of the library `peft`, merged into the tensors of the checkpoint they belong to.

`BASE+lora:ADAPTER` is a checkpoint with the names and shapes of BASE. A tensor W that the adapter
changes is W + s B A (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models"), with
the scale s of `adapter_config.json` (`peft/tuners/lora/layer.py`).
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.reader import (
    CheckpointReader,
    CheckpointSpec,
    explained,
    require_names,
)
from runner.errors import CheckpointError, Problem, nearest

SEPARATOR = "+lora:"
CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
# Values of `init_lora_weights` that leave the base as it is; `pissa`, `olora` and others do not.
_STARTS = ("none", "true", "false", "gaussian", "eva", "orthogonal")
_FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<factor>[AB])(\.weight)?")


def split_adapter(path: str) -> tuple[str, str]:
    """Splits `BASE+lora:ADAPTER`; the adapter is empty if the path names none."""
    base, separator, adapter = path.rpartition(SEPARATOR)
    return (base, adapter) if separator else (path, "")


@dataclass(frozen=True)
class _Update:
    """The tensors of an adapter that change one tensor, by their names.

    Attributes:
      a, b: the factors; the same name twice for a tensor that is replaced as a whole.
      is_transposed: whether the product is added transposed.
    """

    a: str
    b: str
    is_transposed: bool = False


class AdapterReader(CheckpointReader):
    """Reads a base checkpoint with an adapter merged into it.

    Args:
      base: the checkpoint that the adapter was trained on.
      adapter: the adapter's tensors; its `adapter_config.json` is beside them.
      path: `BASE+lora:ADAPTER`.
    """

    what = "an adapter of peft"

    def __init__(self, base: CheckpointReader, adapter: CheckpointReader, path: str) -> None:
        self._base, self._adapter, self._path = base, adapter, path

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`.

        Raises:
          CheckpointError: also when the adapter changes what the base does not hold, or is not one
            that adds a product of two matrices.
        """
        base, adapter = self._base.spec(), self._adapter.spec()
        _ = self._updates

        def content() -> str:
            config = json.dumps(self._config, sort_keys=True)
            return files.digest_of_parts((base.digest, adapter.digest, config))

        kind = f"{base.format} with a LoRA adapter"
        return replace(base, path=self._path, format=kind, content=content)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`; the product is computed in float32 or wider."""
        require_names(self._path, names, self._base.spec().tensors)
        for name, value in self._base.read(names):
            update = self._updates.get(name)
            if update is not None:
                with explained(self._path, self.what, re.error, of=update.a):
                    value = self._merged(value, update)
            yield name, value

    def _merged(self, value: NDArray[Any], update: _Update) -> NDArray[np.generic]:
        factors = dict(self._adapter.read(sorted({update.a, update.b})))
        if update.a == update.b:
            return _of_shape(value, factors[update.a]).astype(value.dtype)
        wide = np.result_type(value.dtype, np.float32)
        a, b = factors[update.a].astype(wide), factors[update.b].astype(wide)
        # The second factor of a convolution has two further axes of size 1.
        product = np.tensordot(b.reshape(b.shape[:2]), a, axes=1)
        if update.is_transposed:
            product = product.T
        scale = self._scale(update.a, rank=a.shape[0])
        merged = value.astype(wide) + scale * _of_shape(value, product)
        return merged.astype(value.dtype)

    def _scale(self, name: str, rank: int) -> float:
        alpha = self._config.get("lora_alpha", rank)
        module = name.removeprefix(_PREFIX).partition(".lora_")[0]
        for pattern, other in (self._config.get("alpha_pattern") or {}).items():
            if re.fullmatch(rf"(.*\.)?({pattern})", module):
                alpha = other
                break
        return float(alpha) / (math.sqrt(rank) if self._config.get("use_rslora") else rank)

    @functools.cached_property
    def _config(self) -> Mapping[str, Any]:
        file = os.path.join(os.path.dirname(self._adapter.spec().path), CONFIG)
        if not files.is_file(file):
            raise CheckpointError.of(
                f"{self._path}: the adapter has no {CONFIG}",
                f"it holds the scale of the product, and {file} does not exist",
                "copy it there from where the adapter is saved",
            )
        with explained(file, "the configuration of an adapter"):
            config = json.loads(files.read_text(file))
            kind = config.get("peft_type")
            if kind == "LORA" and config.get("use_dora"):
                kind = "DoRA"
            start = str(config.get("init_lora_weights")).lower()
        if kind != "LORA":
            raise CheckpointError.of(
                f"{file} describes an adapter of type {kind}",
                "only LoRA adds a product of two matrices to a tensor",
                "merge it with peft (merge_and_unload) and name the merged model",
            )
        if start not in _STARTS:
            raise CheckpointError.of(
                f"{file} describes an adapter that began as {start}",
                "such an adapter also changes the weights of the model that it is added to",
                "merge it with peft (merge_and_unload) and name the merged model",
            )
        return dict(config)

    @functools.cached_property
    def _updates(self) -> Mapping[str, _Update]:
        """Name in the base -> what changes it."""
        base = self._base.spec()
        tensors, updates = self._adapter.spec().tensors, {}
        for name in tensors:
            match = _FACTOR.fullmatch(name)
            if match is None:
                # A bias that was trained beside the factors is within the layer they wrap.
                changed = name.removeprefix(_PREFIX).replace(".base_layer.", ".")
                updates[changed] = _Update(name, name)
            elif match["factor"] == "A":
                other = re.sub(r"(.*lora_(?:embedding_)?)A", r"\1B", name)
                is_transposed = bool(match["embedding"] or self._config.get("fan_in_fan_out"))
                module = match["module"].removeprefix(_PREFIX)
                updates[f"{module}.weight"] = _Update(name, other, is_transposed)
        other_names, problems = base.other_names, []
        for name, update in updates.items():
            if update.b not in tensors:
                problems.append(Problem(f"{self._path} lacks {update.b}", f"it holds {update.a}"))
            elif other_names.get(name, name) not in base.tensors:
                problems.append(
                    Problem(
                        f"{self._path} changes {name}",
                        f"{base.path} holds no such tensor",
                        "name the checkpoint that the adapter was trained on",
                        nearest(name, base.tensors),
                    )
                )
        if problems:
            raise CheckpointError(*problems)
        return {other_names.get(name, name): update for name, update in updates.items()}


def _of_shape(value: NDArray[Any], change: NDArray[Any]) -> NDArray[Any]:
    # NumPy would broadcast it.
    if change.shape != value.shape:
        raise ValueError(f"it changes a tensor of shape {value.shape} by one of {change.shape}")
    return change
