"""Maps whose values decide: their processor time and memory: `python -m benchmarks.values`.

ResNet-50 at 224 pixels and BERT base are mapped from files and references of themselves, whose
modules are called `m0`, `m1`, ... in a random order. The peak of the memory that a process takes
beyond its imports is compared with that of a process that builds and calls the model.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import safetensors.numpy

import runner
from benchmarks.harness import Result, memory, options, report, shown
from runner.proof.feeding import array_of, by_name
from tests.architectures.models import by_hand, cnns
from tests.conformance.goldens import save_npz

LIMIT_S = 60.0
LIMIT_OF_MEMORY = 2.0
MODELS: dict[str, Callable[[], keras.Model]] = {
    "ResNet-50": lambda: cnns.resnet(cnns.bottleneck, (3, 4, 6, 3), 64, size=224),
    "BERT base": lambda: by_hand.bert(False),
}


def inputs_of(name: str) -> Any:
    """Returns an image, or nine tokens, for a model."""
    generator = np.random.default_rng(0)
    if name == "ResNet-50":
        return generator.normal(size=(1, 224, 224, 3)).astype(np.float32)
    ones = np.ones((1, 9), np.int32)
    tokens = generator.integers(0, 30522, (1, 9), np.int32)
    return {"token_ids": tokens, "padding_mask": ones, "segment_ids": ones}


def write(name: str, folder: Path) -> str:
    """Writes the tensors of a model, and what its layers with weights compute; returns nothing."""
    keras.utils.set_random_seed(1)
    model, inputs = MODELS[name](), inputs_of(name)
    generator = np.random.default_rng(2)
    for variable in model.variables:
        if len(variable.shape) == 1:  # Of norms and biases, which begin as zeros or ones.
            variable.assign(variable + generator.uniform(-0.2, 0.2, variable.shape))
    layers = [layer for layer in model._flatten_layers() if layer._trainable_variables]
    numbers = dict(zip(map(id, layers), generator.permutation(len(layers)), strict=True))
    activations: dict[str, Any] = {}
    call = keras.Layer.__call__

    def recorded(layer: keras.Layer, *arguments: Any, **keywords: Any) -> Any:
        output = call(layer, *arguments, **keywords)
        if id(layer) in numbers:
            activations.setdefault(f"activations/m{numbers[id(layer)]}", array_of(output))
        return output

    with mock.patch.object(keras.Layer, "__call__", recorded):
        outputs = by_name(model(inputs, training=False))
    tensors = {
        f"m{numbers[id(layer)]}.{variable.name}": array_of(variable)
        for layer in layers
        for variable in layer._trainable_variables + layer._non_trainable_variables
    }
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    arrays = {f"outputs/{key}" if key else "outputs": array_of(v) for key, v in outputs.items()}
    if isinstance(inputs, dict):
        arrays |= {f"inputs/{key}": value for key, value in inputs.items()}
    else:
        arrays["inputs"] = inputs
    save_npz(folder / "reference.npz", **arrays, **activations)
    return ""


def called(name: str, folder: Path) -> str:
    """Builds and calls a model; returns what that takes, in MiB."""
    before = memory("VmRSS")
    model = MODELS[name]()
    model(inputs_of(name), training=False)
    return f"{memory('VmHWM') - before}"


def mapped(name: str, folder: Path) -> str:
    """Maps a model; returns what that takes, in MiB and in seconds of processor time."""
    before = memory("VmRSS")
    model = MODELS[name]()
    begun = time.process_time()
    proposal = runner.propose(
        model, folder / "model.safetensors", reference=folder / "reference.npz"
    )
    seconds = time.process_time() - begun
    doubts = [str(doubt) for doubt in proposal.doubts()]
    if doubts:
        raise RuntimeError(f"{name} is not decided: {doubts[:2]}")
    return f"{memory('VmHWM') - before} {seconds}"


WAYS = {"write": write, "called": called, "mapped": mapped}


def measured(way: str, name: str, folder: Path) -> tuple[float, ...]:
    """Runs one way in a process of its own; returns the numbers that it prints last."""
    command = [sys.executable, "-m", "benchmarks.values", "--way", way, name, str(folder)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return tuple(map(float, output.split("\n")[-2].split()))


def compared(name: str, repeats: int) -> list[Result]:
    """Measures a model."""
    with tempfile.TemporaryDirectory() as folder:
        measured("write", name, Path(folder))
        held = [measured("called", name, Path(folder))[0] for _ in range(repeats)]
        taken = [measured("mapped", name, Path(folder)) for _ in range(repeats)]
    peaks, seconds = ([*values] for values in zip(*taken, strict=True))
    ratio = float(np.median(peaks) / np.median(held))
    case = f"a map of {name}"
    return shown(
        [
            Result(case, "the model, called", "MiB", tuple(held), 1.0),
            Result(case, "map and proof", "MiB", tuple(peaks), ratio, LIMIT_OF_MEMORY),
            Result(case, "map and proof", "s CPU", tuple(seconds), limit=LIMIT_S),
        ]
    )


def main() -> int:
    """Prints the results; returns 1 when a limit is missed."""
    parser = options(__doc__, repeats=1)
    parser.add_argument("--way", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        way, name, folder = args.way
        print(WAYS[way](name, Path(folder)))
        return 0
    return report([row for name in MODELS for row in compared(name, args.repeats)], args.json)


if __name__ == "__main__":
    sys.exit(main())
