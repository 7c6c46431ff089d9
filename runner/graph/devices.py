"""The devices of this machine that a run trains on, and how a step is divided among them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from runner.config.schema import DevicesConfig
from runner.errors import ConfigError, Problem
from runner.graph.input_pipeline import TrainingInput
from runner.internals.keras import layers_of

# Logical CPU devices share the cores, and are for trying out.
_MOST_CPUS = 16


@dataclass(frozen=True)
class Devices:
    """The devices that train a model.

    Attributes:
      names: such as `/gpu:0`; variables, loss and metrics are on the first. Empty, the default,
        leaves the placement to TensorFlow.
      synchronized: whether batch-norm layers use the statistics of the whole batch.
      batches: how many batches of the data make the batch of a step.
    """

    names: tuple[str, ...] = ()
    synchronized: bool = False
    batches: int = 1

    @property
    def several(self) -> bool:
        """Whether a batch is divided."""
        return len(self.names) > 1

    @property
    def logical_cpus(self) -> int:
        """The number of CPU devices that a session needs; 0 for TensorFlow's own number."""
        numbers = [int(name.rpartition(":")[2]) for name in self.names if name.startswith("/cpu")]
        return max(numbers) + 1 if numbers else 0

    def scope(self) -> AbstractContextManager[object]:
        """Places new operations on the first device, unless TensorFlow does so by default."""
        default = ("/gpu:0",) if _physical("GPU") else ("/cpu:0",)
        return nullcontext() if self.names[:1] in ((), default) else tf.device(self.names[0])

    def called(self, model: Any) -> Any:
        """Returns the function of features and `training` that calls a model.

        Raises:
          ConfigError: when several devices cannot call it.
        """
        if not self.several:
            return model
        if not isinstance(model, keras.Layer):
            raise ConfigError.of(
                f"devices: the model is a {type(model).__name__}",
                "the layers of a Keras model alone can take their variables from each device",
                "set devices=1",
            )
        return ParallelCall(model, self.names, synchronized=self.synchronized)

    def dividing_calls(self) -> AbstractContextManager[object]:
        """Divides the batches of Keras models that a step of the model's own calls within."""
        if not self.several:
            return nullcontext()
        return parallel_calls(self.names, synchronized=self.synchronized)

    def next_batch(self, source: TrainingInput) -> tuple[Any, tf.Tensor]:
        """Returns the batch of a step, and how long the step waited for it in seconds, float64."""
        batch, waited = source.next()
        for _ in range(self.batches - 1):
            with tf.control_dependencies([waited]):
                other, seconds = source.next()
            batch = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), batch, other)
            waited += seconds
        return batch, waited

    def notes(self, model: Any, data: Any, source: TrainingInput, *, parts: int = 1) -> list[str]:
        """Returns lines on how devices divide a step; `parts` tasks divide each batch."""
        if not self.several:
            return [f"devices: {name}" for name in self.names]
        batch_size = tf.nest.flatten(source.element_spec)[0].shape[0]
        count, size = len(self.names), batch_size or getattr(data, "batch_size", None)
        total = -(-self.batches * size // parts) if size else None
        divided = f"{total} examples: {_divided(total, count)}" if total else "the batch of a step"
        copied = sum(_bytes(variable) for variable in model.variables)
        reduced = sum(_bytes(variable) for variable in model.trainable_variables)
        shared = ", which share the cores of the CPU" if self.names[0].startswith("/cpu") else ""
        notes = [
            f"devices: {', '.join(self.names)}{shared}, divide {divided}",
            f"devices: a step copies {copied:,} bytes of variables from the first device to every "
            f"other device, and {reduced:,} bytes of gradients back",
        ]
        if any(isinstance(layer, keras.layers.BatchNormalization) for layer in layers_of(model)):
            batch = "each device; the first one's are saved"
            if self.synchronized:
                batch = "the whole batch" if parts == 1 else "each task's part of the batch"
            notes.append(f"devices: batch-norm layers use the statistics of {batch}")
        return notes


def devices_of(config: DevicesConfig) -> Devices:
    """Returns the devices of this machine that a configuration names.

    Raises:
      ConfigError: when the machine has no such devices.
    """
    names = _names(config.count)
    batches = len(names) or 1 if config.batch.value == "per_device" else 1
    return Devices(names, config.sync_batch_norm, batches)


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


def _divided(size: int, count: int) -> str:
    """Describes the parts of a batch, e.g. `32 each`."""
    least, rest = divmod(size, count)
    return f"parts of {least + 1} and {least}" if rest else f"{least} each"


def _bytes(variable: Any) -> int:
    return int(tf.TensorShape(variable.shape).num_elements() * tf.as_dtype(variable.dtype).size)
