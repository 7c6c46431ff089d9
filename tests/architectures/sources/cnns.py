"""Convolutional networks of torchvision and timm with seeded random weights.

A function returns the network and its input; `small` asks for one of a few channels.
"""

from __future__ import annotations

import timm
import torch
import torchvision.models as zoo
from timm.models._efficientnet_builder import decode_arch_def
from timm.models.efficientnet import EfficientNet
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torchvision.models.resnet import Bottleneck


def images(size=65, count=2):
    return torch.randn(count, 3, size, size)


def named(name, size=65, count=2, **keys):
    """Returns the function of a model of torchvision, or of timm after `timm/`."""

    def source(small):
        if name.startswith("timm/"):
            return timm.create_model(name.removeprefix("timm/"), **keys), images(size, count)
        return getattr(zoo, name)(**keys), images(size, count)

    return source


mobilenet_v2 = named("mobilenet_v2")
efficientnet_b0 = named("efficientnet_b0")
resnet18 = named("resnet18")
vgg16_bn = named("vgg16_bn", 224, 1)
mobilenet_v3 = named("mobilenet_v3_small")
squeezenet = named("squeezenet1_1", 47)
regnet_y_400mf = named("regnet_y_400mf")
shufflenet = named("shufflenet_v2_x1_0")
densenet121 = named("densenet121", 64)
convnext_tiny = named("convnext_tiny", 64)
timm_resnet50 = named("timm/resnet50")
timm_vgg16 = named("timm/vgg16", 224, 1)
timm_efficientnet_b0 = named("timm/efficientnet_b0")
timm_densenet121 = named("timm/densenet121", 64)
timm_convnext_tiny = named("timm/convnext_tiny", 64)


def resnet50(small):
    model = zoo.resnet50()
    if small:
        model.conv1, model.bn1 = nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4)
        model.inplanes = 4
        model.layer1 = model._make_layer(Bottleneck, 4, 2)
        model.layer2 = model._make_layer(Bottleneck, 8, 2, stride=2)
        model.layer3 = model.layer4 = nn.Identity()
        model.fc = nn.Linear(32, 5)
    return model, images(17, 1) if small else images()


def resnet50_v1(small):
    """The strides are in the first convolution of a block, as in the first paper."""
    model, inputs = resnet50(small)
    for stage in (model.layer2, model.layer3, model.layer4):
        if isinstance(stage, nn.Sequential):
            stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return model, inputs


def vgg16(small):
    if not small:
        return zoo.vgg16(), images(224, 1)
    model = zoo.VGG(zoo.vgg.make_layers([4, 4, "M", 4, 4, "M", 6, "M"]), num_classes=5)
    model.avgpool = nn.Identity()
    model.classifier[0], model.classifier[3] = nn.Linear(24, 8), nn.Linear(8, 7)
    model.classifier[6] = nn.Linear(7, 5)
    return model, images(16, 1)


def timm_mobilenetv2(small):
    if not small:
        return timm.create_model("mobilenetv2_100"), images()
    blocks = decode_arch_def([["ds_r1_k3_s1_c4"], ["ir_r2_k3_s2_e3_c6"]])
    model = EfficientNet(blocks, 5, num_features=16, stem_size=6, fix_stem=True, act_layer=nn.ReLU6)
    return model, images(17, 1)


class Odd(nn.Module):
    """Layers that are seldom used; each has a layout or a name of its own."""

    def __init__(self):
        super().__init__()
        self.grouped = nn.Conv2d(4, 8, 3, padding=1, groups=2)
        self.slopes = nn.PReLU(8)
        self.depthwise = nn.Conv2d(8, 16, 3, padding=1, groups=8)  # Two outputs for a channel.
        self.groups = nn.GroupNorm(4, 16)
        self.normed = weight_norm(nn.Conv2d(16, 8, 1))
        self.layer_scale = nn.Parameter(torch.ones(8, 1, 1))
        self.up = nn.ConvTranspose2d(8, 6, 3, stride=2)
        self.sequence = nn.Conv1d(6, 5, 3)
        self.across = nn.LayerNorm(5)
        self.volume = nn.Conv3d(1, 2, (2, 2, 3), bias=False)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        x = self.groups(self.depthwise(self.slopes(self.grouped(x))))
        x = self.up(self.layer_scale * self.normed(x))
        x = self.sequence(x.mean(2)).transpose(1, 2)
        x = self.volume(self.across(x).reshape(len(x), 1, 3, 3, 5))
        return self.head(x.flatten(1))


def odd(small):
    return Odd(), torch.randn(2, 4, 5, 5)
