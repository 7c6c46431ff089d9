"""Keras counterparts of convolutional networks, with outputs before any softmax.

A function returns a built model; `small` asks for one of a few channels.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
from keras import layers

from tests.architectures.models.parts import (
    Chain,
    Layers,
    Residual,
    Squeeze,
    conv,
    depthwise,
    maximum,
    model,
    norm,
    relu,
)


def built(name: str, size: int, *, epsilon: float = 1e-5, **keys: Any) -> keras.Model:
    """Returns a model of `keras.applications` with PyTorch's epsilon and without preprocessing."""
    shape = (size, size, 3)
    make = getattr(keras.applications, name)
    model = make(weights=None, classifier_activation=None, input_shape=shape, **keys)
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.epsilon = epsilon
        if isinstance(layer, layers.Rescaling):
            layer.scale = 1.0
    return model


def resnet50_v1(small: bool) -> keras.Model:
    return built("ResNet50", 65)


def vgg16(small: bool) -> keras.Model:
    if not small:
        return built("VGG16", 224)
    steps: Layers = []
    for block, widths in enumerate([(4, 4), (4, 4), (6,)], start=1):
        for index, filters in enumerate(widths, start=1):
            keys = {"padding": "same", "activation": "relu", "name": f"block{block}_conv{index}"}
            steps.append(layers.Conv2D(filters, 3, **keys))
        steps.append(layers.MaxPooling2D(2))
    dense = [layers.Dense(8, "relu", name="fc1"), layers.Dense(7, "relu", name="fc2")]
    head = layers.Dense(5, name="predictions")
    return keras.Sequential([keras.Input((16, 16, 3)), *steps, layers.Flatten(), *dense, head])


def mobilenet_v2(small: bool) -> keras.Model:
    return built("MobileNetV2", 65)


def efficientnet_b0(small: bool) -> keras.Model:
    return built("EfficientNetB0", 65)


def densenet121(small: bool) -> keras.Model:
    return built("DenseNet121", 64)


def mobilenet_v3(small: bool) -> keras.Model:
    return built("MobileNetV3Small", 65, epsilon=1e-3, include_preprocessing=False)


def convnext_tiny(small: bool) -> keras.Model:
    return built("ConvNeXtTiny", 64, include_preprocessing=False)


def bottleneck(
    filters: int, strides: int, project: bool, *, first: bool = False, **keys: Any
) -> keras.Layer:
    """ResNet's block: the stride is in the 3x3 convolution (v1.5), or in the first one (v1)."""
    shortcut = [*conv("shortcut", 4 * filters, 1, strides), norm("shortcut_norm")]
    steps = [
        *conv("reduce", filters, 1, strides if first else 1), norm("reduce_norm"), relu(),
        *conv("filter", filters, 3, 1 if first else strides), norm("filter_norm"), relu(),
        *conv("expand", 4 * filters), norm("expand_norm"),
    ]  # fmt: skip
    return Residual(steps, shortcut if project else [], **keys)


def basic(filters: int, strides: int, project: bool, **keys: Any) -> keras.Layer:
    shortcut = [*conv("shortcut", filters, 1, strides), norm("shortcut_norm")]
    steps = [
        *conv("first", filters, 3, strides), norm("first_norm"), relu(),
        *conv("second", filters, 3), norm("second_norm"),
    ]  # fmt: skip
    return Residual(steps, shortcut if project and strides > 1 else [], **keys)


def resnet(
    block: Any, counts: Sequence[int], width: int, *, size: int = 65, classes: int = 1000
) -> keras.Model:
    steps = [*conv("stem", width, 7, 2), norm("stem_norm"), relu(), *maximum()]
    for stage, count in enumerate(counts):
        for index in range(count):
            strides = 2 if stage and not index else 1
            name = f"stage{stage}_block{index}"
            steps.append(block(width * 2**stage, strides, not index, name=name))
    return model(steps, size, classes)


def resnet50(small: bool) -> keras.Model:
    if small:
        return resnet(bottleneck, (2, 2), 4, size=17, classes=5)
    return resnet(bottleneck, (3, 4, 6, 3), 64)


def resnet50_strides_first(small: bool) -> keras.Model:
    return resnet(functools.partial(bottleneck, first=True), (2, 2), 4, size=17, classes=5)


def resnet18(small: bool) -> keras.Model:
    return resnet(basic, (2, 2, 2, 2), 64)


def vgg16_bn(small: bool) -> keras.Model:
    steps: Layers = []
    for stage, (filters, count) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]):
        for index in range(count):
            name = f"stage{stage}_{index}"
            steps += [*conv(name, filters, 3, use_bias=True), norm(f"{name}_norm"), relu()]
        steps.append(layers.MaxPooling2D(2))
    steps.append(layers.Flatten())
    steps += [layers.Dense(4096, "relu", name=f"hidden{index}") for index in range(2)]
    head = layers.Dense(1000, name="head")
    return keras.Sequential([keras.Input((224, 224, 3)), *steps, head], name="net")


class Fire(layers.Layer):
    """SqueezeNet's module: a narrow convolution, and two wide ones side by side."""

    def __init__(self, narrow: int, wide: int, **keys: Any) -> None:
        super().__init__(**keys)
        self.narrow = layers.Conv2D(narrow, 1, activation="relu", name="narrow")
        self.left = layers.Conv2D(wide, 1, activation="relu", name="left")
        self.right = layers.Conv2D(wide, 3, padding="same", activation="relu", name="right")

    def call(self, x: Any) -> Any:
        x = self.narrow(x)
        return keras.ops.concatenate([self.left(x), self.right(x)], -1)


def squeezenet(small: bool) -> keras.Model:
    def fires(first: int, *widths: int) -> Layers:
        return [Fire(n, 4 * n, name=f"fire{first + i}") for i, n in enumerate(widths)]

    def pool() -> keras.Layer:
        return layers.MaxPooling2D(3, 2)

    steps = [
        layers.Conv2D(64, 3, 2, activation="relu", name="stem"), pool(),
        *fires(1, 16, 16), pool(), *fires(3, 32, 32), pool(), *fires(5, 48, 48, 64, 64),
        layers.Conv2D(1000, 1, activation="relu", name="head"), layers.GlobalAveragePooling2D(),
    ]  # fmt: skip
    return keras.Sequential([keras.Input((47, 47, 3)), *steps], name="net")


def regnet_y_400mf(small: bool) -> keras.Model:
    steps = [*conv("stem", 32, 3, 2), norm("stem_norm"), relu()]
    before = 32
    for stage, (filters, count) in enumerate([(48, 1), (104, 3), (208, 6), (440, 6)]):
        for index in range(count):
            strides = 1 if index else 2
            body = [
                *conv("a", filters), norm("a_norm"), relu(),
                *conv("b", filters, 3, strides, groups=filters // 8), norm("b_norm"), relu(),
                Squeeze(filters, round(before / 4), "relu", name="squeeze"),
                *conv("c", filters), norm("c_norm"),
            ]  # fmt: skip
            shortcut = [] if index else [*conv("shortcut", filters, 1, 2), norm("shortcut_norm")]
            steps.append(Residual(body, shortcut, name=f"stage{stage}_block{index}"))
            before = filters
    return model(steps, 65)


class Shuffle(layers.Layer):
    """ShuffleNet's unit: two branches whose channels are interleaved."""

    def __init__(self, filters: int, strides: int, **keys: Any) -> None:
        super().__init__(**keys)
        self.strides = strides
        side = [
            *depthwise("depthwise", strides=2), norm("depthwise_norm"),
            *conv("project", filters), norm("project_norm"), relu(),
        ]  # fmt: skip
        self.side = Chain(side, name="side") if strides > 1 else None
        main = [
            *conv("expand", filters), norm("expand_norm"), relu(),
            *depthwise("depthwise", strides=strides), norm("depthwise_norm"),
            *conv("project", filters), norm("project_norm"), relu(),
        ]  # fmt: skip
        self.main = Chain(main, name="main")

    def call(self, x: Any) -> Any:
        left, right = (self.side(x), x) if self.side else keras.ops.split(x, 2, -1)
        pair = keras.ops.stack([left, self.main(right)], -1)
        return keras.ops.reshape(pair, (-1, *pair.shape[1:-2], 2 * pair.shape[-2]))


def shufflenet(small: bool) -> keras.Model:
    steps = [*conv("stem", 24, 3, 2), norm("stem_norm"), relu(), *maximum()]
    for stage, (filters, count) in enumerate([(58, 4), (116, 8), (232, 4)]):
        for index in range(count):
            steps.append(Shuffle(filters, 1 if index else 2, name=f"stage{stage}_unit{index}"))
    return model([*steps, *conv("top", 1024), norm("top_norm"), relu()], 65)


def hub_resnet50(small: bool) -> keras.Model:
    """KerasHub's backbone with a head."""
    import keras_hub

    backbone = keras_hub.models.ResNetBackbone(
        [64], [7], [64, 128, 256, 512], [3, 4, 6, 3], [1, 2, 2, 2], "bottleneck_block",
        image_shape=(65, 65, 3),
    )  # fmt: skip
    mean = layers.GlobalAveragePooling2D()(backbone.output)
    return keras.Model(backbone.input, layers.Dense(1000, name="predictions")(mean))


def inverted_residuals(small: bool) -> keras.Model:
    """MobileNetV2, with stages of blocks: (expansion, filters, count, strides)."""
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1)]
    stages += [(6, 160, 3, 2), (6, 320, 1, 1)]
    stem, top, size, classes = 32, 1280, 65, 1000
    if small:
        stages, stem, top, size, classes = [(1, 8, 1, 1), (3, 8, 2, 2)], 6, 16, 17, 5
    steps = [*conv("stem", stem, 3, 2), norm("stem_norm"), layers.ReLU(6)]
    before = stem
    for stage, (expansion, filters, count, strides) in enumerate(stages):
        for index in range(count):
            expand = [*conv("expand", expansion * before), norm("expand_norm"), layers.ReLU(6)]
            body = [
                *(expand if expansion > 1 else []),
                *depthwise("depthwise", strides=1 if index else strides), norm("depthwise_norm"),
                layers.ReLU(6),
                *conv("project", filters), norm("project_norm"),
            ]  # fmt: skip
            name = f"stage{stage}_block{index}"
            if before == filters and (index or strides == 1):
                steps.append(Residual(body, activate=False, name=name))
            else:
                steps.append(Chain(body, name=name))
            before = filters
    return model([*steps, *conv("top", top), norm("top_norm"), layers.ReLU(6)], size, classes)


class LayerScale(layers.Layer):
    """Scales channels by weights of its own."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), name="scale")

    def call(self, x: Any) -> Any:
        return x * self.scale


def odd(small: bool) -> keras.Model:
    steps = [
        layers.Conv2D(8, 3, padding="same", groups=2, name="grouped"),
        layers.PReLU(shared_axes=[1, 2], name="slopes"),
        layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, name="depthwise"),
        layers.GroupNormalization(4, epsilon=1e-5, name="groups"),
        layers.Conv2D(8, 1, name="normed"),
        LayerScale(name="layer_scale"),
        layers.Conv2DTranspose(6, 3, 2, name="up"),
        layers.Lambda(lambda x: keras.ops.mean(x, 1)),
        layers.Conv1D(5, 3, name="sequence"),
        layers.LayerNormalization(epsilon=1e-5, name="across"),
        layers.Reshape((3, 3, 5, 1)),
        layers.Conv3D(2, (2, 2, 3), use_bias=False, name="volume"),
        layers.Flatten(),
        layers.Dense(3, name="head"),
    ]
    return keras.Sequential([keras.Input((5, 5, 4)), *steps])
