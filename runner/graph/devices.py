"""The devices of this machine that a run trains on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from runner.config.schema import DevicesConfig
from runner.errors import ConfigError, Problem

# Logical CPU devices share the cores, and are for trying out.
_MOST_CPUS = 16


@dataclass(frozen=True)
class Devices:
    """The devices that train a model.

    Attributes:
      names: such as `/gpu:0`; the first has the variables that checkpoints hold, and evaluates.
        Empty, the default, leaves the placement to TensorFlow.
      takes_batches: whether each takes a batch of the data; otherwise they divide one.
    """

    names: tuple[str, ...] = ()
    takes_batches: bool = False

    def prepare(self, config: tf.compat.v1.ConfigProto) -> None:
        """Adds what a session or a server needs to train on them to its configuration."""
        numbers = [int(name.rpartition(":")[2]) for name in self.names if name.startswith("/cpu")]
        if numbers:
            config.device_count["CPU"] = max(numbers) + 1
        # Sums between GPUs; those between CPUs are TensorFlow's own.
        config.experimental.collective_nccl = bool(_physical("GPU")) and not numbers

    def scope(self) -> AbstractContextManager[object]:
        """Places new operations on the first device, unless TensorFlow does so by default."""
        default = ("/gpu:0",) if _physical("GPU") else ("/cpu:0",)
        return nullcontext() if self.names[:1] in ((), default) else tf.device(self.names[0])


def devices_of(config: DevicesConfig) -> Devices:
    """Returns the devices of this machine that a configuration names.

    Raises:
      ConfigError: when the machine has no such devices.
    """
    return Devices(_names(config.count), config.batch.value == "per_device")


def _names(count: Any) -> tuple[str, ...]:
    available = {kind: _physical(kind.upper()) for kind in ("gpu", "cpu")}
    kind = "gpu" if available["gpu"] else "cpu"
    available["cpu"] = _MOST_CPUS
    if count == "all":
        count = available["gpu"] or 1
    if not isinstance(count, list):
        count = int(count or 1)
        count = list(range(count)) if count > 1 else []
    names = [str(name).lower().strip("/") for name in count]
    names = [f"/{name}" if ":" in name else f"/{kind}:{name}" for name in names]
    for name in names:
        device_kind, _, number = name.strip("/").partition(":")
        if int(number) >= available[device_kind]:
            raise ConfigError(_missing(name, available))
    if twice := [name for name in names if names.count(name) > 1]:
        state = f"devices names {twice[0]} more than once"
        raise ConfigError.of(state, "every device takes a part of a batch", "name it once")
    if len({name.partition(":")[0] for name in names}) > 1:
        raise ConfigError.of(
            f"devices names {' and '.join(names)}",
            "TensorFlow sums gradients over devices of one kind",
            "name GPUs alone",
        )
    return tuple(names)


def _missing(name: str, available: Mapping[str, int]) -> Problem:
    gpus = [f"gpu:{number}" for number in range(available["gpu"])]
    if name.startswith("/cpu"):
        state = f"devices: {name} is beyond the {_MOST_CPUS} logical CPU devices of a run"
        cause = "this machine has no GPU" if not gpus else ""
        return Problem(state, cause, f"ask for at most {_MOST_CPUS}")
    cause = f"TensorFlow sees {len(gpus)} GPUs here" if gpus else "TensorFlow sees no GPU here"
    remedy = "`nvidia-smi` lists the machine's GPUs, and CUDA_VISIBLE_DEVICES hides some"
    return Problem(f"devices: there is no {name}", cause, remedy, gpus)


def _physical(kind: str) -> int:
    return len(tf.config.list_physical_devices(kind))
