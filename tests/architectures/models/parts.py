"""Parts of convolutional networks, with PyTorch's padding and epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers

Layers = list[keras.Layer]


def conv(name: str, filters: int, size: int = 1, strides: int = 1, **keys: Any) -> Layers:
    keys = {"use_bias": False, "strides": strides, "name": name, **keys}
    return [*padding(size), layers.Conv2D(filters, size, **keys)]


def depthwise(name: str, size: int = 3, strides: int = 1, **keys: Any) -> Layers:
    keys = {"use_bias": False, "strides": strides, "name": name, **keys}
    return [*padding(size), layers.DepthwiseConv2D(size, **keys)]


def padding(size: int) -> Layers:
    return [layers.ZeroPadding2D(size // 2)] if size > 1 else []


def norm(name: str) -> keras.Layer:
    return layers.BatchNormalization(epsilon=1e-5, name=name)


def relu() -> keras.Layer:
    return layers.ReLU()


def maximum() -> Layers:
    return [*padding(3), layers.MaxPooling2D(3, 2)]


class Chain(layers.Layer):
    """Applies layers one after another; their names are below its own."""

    def __init__(self, steps: Layers, **keys: Any) -> None:
        super().__init__(**keys)
        self.steps = steps

    def build(self, shape: Any) -> None:
        for layer in self.steps:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)

    def call(self, x: Any) -> Any:
        for layer in self.steps:
            x = layer(x)
        return x

    def compute_output_shape(self, shape: Any) -> Any:
        for layer in self.steps:
            shape = layer.compute_output_shape(shape)
        return shape


class Residual(Chain):
    """Adds its input, or what a shortcut makes of it, to the chain's output."""

    def __init__(
        self,
        steps: Layers,
        shortcut: Sequence[keras.Layer] = (),
        *,
        activate: bool = True,
        **keys: Any,
    ) -> None:
        super().__init__(steps, **keys)
        self.shortcut, self.activate = list(shortcut), activate

    def build(self, shape: Any) -> None:
        super().build(shape)
        for layer in self.shortcut:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)

    def call(self, x: Any) -> Any:
        y = super().call(x)
        for layer in self.shortcut:
            x = layer(x)
        return keras.ops.relu(x + y) if self.activate else x + y


class Squeeze(Chain):
    """Scales the channels by what two 1x1 convolutions make of their means."""

    def __init__(self, filters: int, reduced: int, activation: str, **keys: Any) -> None:
        reduce = layers.Conv2D(reduced, 1, activation=activation, name="reduce")
        expand = layers.Conv2D(filters, 1, activation="sigmoid", name="expand")
        super().__init__([reduce, expand], **keys)

    def call(self, x: Any) -> Any:
        return x * super().call(keras.ops.mean(x, (1, 2), keepdims=True))

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def model(steps: Layers, size: int, classes: int = 1000, name: str = "net") -> keras.Model:
    """Returns a model that applies the steps, then averages and classifies."""
    head = [layers.GlobalAveragePooling2D(), layers.Dense(classes, name="head")]
    return keras.Sequential([keras.Input((size, size, 3)), *steps, *head], name=name)
