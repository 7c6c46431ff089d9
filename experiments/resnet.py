"""A small ResNet of Keras's layers, and the files of the same network as PyTorch wrote them.

`python -m runner.examples.resnet` copies the files, `resnet.pt` and `reference.npz`, into the
current folder, where the tutorial from PyTorch to Keras takes them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import keras
from keras import layers

_Step: TypeAlias = Callable[[keras.KerasTensor], keras.KerasTensor]

FILES = ("resnet.pt", "reference.npz")


def build(width: int = 4, blocks: int = 2, stages: int = 2, classes: int = 5) -> keras.Model:
    """Returns a ResNet, its layers named as anybody would name them who writes it in Keras."""
    images = keras.Input((17, 17, 3), name="images")
    x = layers.ReLU()(_norm("stem_norm")(_conv("stem", width, 7, 2)(images)))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    for stage in range(stages):
        for block in range(blocks):
            name = f"stage{stage}_block{block}"
            x = _block(x, width * 2**stage, 2 if stage and not block else 1, name=name)
    outputs = layers.Dense(classes, name="head")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(images, outputs, name="resnet")


def _block(x: keras.KerasTensor, filters: int, strides: int, *, name: str) -> keras.KerasTensor:
    """Applies a bottleneck, whose 3x3 convolution has the stride, and adds its input."""
    shortcut = x
    if strides > 1 or x.shape[-1] != 4 * filters:
        shortcut = _conv(f"{name}_shortcut", 4 * filters, 1, strides)(x)
        shortcut = _norm(f"{name}_shortcut_norm")(shortcut)
    sizes = (("reduce", filters, 1, 1), ("filter", filters, 3, strides))
    for part, channels, size, stride in sizes:
        x = _conv(f"{name}_{part}", channels, size, stride)(x)
        x = layers.ReLU()(_norm(f"{name}_{part}_norm")(x))
    x = _norm(f"{name}_expand_norm")(_conv(f"{name}_expand", 4 * filters, 1, 1)(x))
    return layers.ReLU()(layers.Add()([x, shortcut]))


def _conv(
    name: str, filters: int, size: int, strides: int
) -> Callable[[keras.KerasTensor], keras.KerasTensor]:
    convolution = layers.Conv2D(filters, size, strides, use_bias=False, name=name)
    # PyTorch pads both sides alike, Keras's `same` does not where there is a stride.
    padding = layers.ZeroPadding2D(size // 2)
    return convolution if size == 1 else lambda x: convolution(padding(x))


def _norm(name: str) -> keras.Layer:
    return layers.BatchNormalization(epsilon=1e-5, name=name)


def main() -> None:
    """Copies the files that are not there yet."""
    for name in FILES:
        if Path(name).exists():
            print(f"{name} exists, and stays as it is")
        else:
            shutil.copyfile(Path(__file__).with_name(name), name)
            print(name)


if __name__ == "__main__":
    main()
