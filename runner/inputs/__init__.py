"""Data for `_target_`: Python generators, TFRecord files, folders of images, `.npz` files."""

from runner.inputs.generator import GeneratorData
from runner.inputs.image_folder import ImageFolder
from runner.inputs.npz import Npz
from runner.inputs.tfrecord import TFRecord

__all__ = ["GeneratorData", "ImageFolder", "Npz", "TFRecord"]
