"""Programs in the style of keras.io, small and rewritten, and how each is run here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.keras_io import generative, supervised, transfer
from tests.support.runs import short

BATCH = 8


def without_labels(arrays: Any) -> Any:
    return arrays[0] if isinstance(arrays, tuple) else arrays


@dataclass(frozen=True)
class Program:
    """A program: its model, and the arrays of a split by seed.

    Attributes:
      model: the function that builds and compiles the model.
      arrays: seed of a split -> what `fit` would take as one batch of all examples.
      batch: examples in a batch.
      features: what to predict from, of what `arrays` returns; by default all but labels.
      config: fields of the configuration besides data and model.
      fit: arguments of `fit` besides.
      evaluates: whether the model has a loss or a `test_step`.
      objective: the metric that selects the best checkpoint.
      loads: whether `keras.models.load_model` needs none of the program's classes.
    """

    model: Callable[[], keras.Model]
    arrays: Callable[[int], Any]
    batch: int = BATCH
    features: Callable[[Any], Any] = lambda arrays: (
        arrays[0] if isinstance(arrays, tuple) else arrays
    )
    config: Mapping[str, Any] = field(default_factory=dict)
    fit: Mapping[str, Any] = field(default_factory=dict)
    evaluates: bool = True
    objective: str = "validation/loss"
    loads: bool = False

    @property
    def name(self) -> str:
        return self.model.__name__


PROGRAMS = {
    program.name: program
    for program in (
        Program(generative.vae, generative.vae_data),
        Program(
            generative.conditional_gan,
            generative.labelled,
            features=lambda arrays: arrays[0],
            evaluates=False,
        ),
        Program(
            generative.wgan_gp,
            generative.vae_data,
            features=lambda arrays: arrays[:, :2],
            evaluates=False,
        ),
        Program(generative.pixel_cnn, generative.images),
        Program(generative.real_nvp, generative.vae_data),
        Program(generative.cycle_gan, generative.pairs, evaluates=False),
        Program(
            generative.ddim,
            generative.vae_data,
            features=lambda arrays: np.concatenate([arrays, arrays[:, :1]], axis=1),
            objective="validation/image_loss",
        ),
        Program(transfer.distillation_by_train_step, transfer.labelled),
        Program(transfer.distillation_by_compute_loss, transfer.labelled),
        Program(
            transfer.metric_learning,
            transfer.Anchors,
            features=lambda anchors: anchors[0][0],
            config={
                "data": {
                    "_target_": "runner.inputs.FitData",
                    "x": {"_target_": "tests.keras_io.transfer.Anchors", "seed": 1},
                    "validation_data": {"_target_": "tests.keras_io.transfer.Anchors", "seed": 2},
                    "shuffle": False,
                },
                "train": short(checkpoint_every=10, epochs=4),
            },
            evaluates=False,
        ),
        Program(transfer.siamese, transfer.triplets),
        Program(transfer.supervised_contrastive, transfer.labelled),
        Program(transfer.contrastive_classifier, transfer.labelled, loads=True),
        Program(transfer.masked_language_model, transfer.masked_tokens, evaluates=False),
        Program(transfer.text_classifier, transfer.word_classes, loads=True),
        Program(
            transfer.sim_siam, transfer.views, features=lambda arrays: arrays[:, 0], evaluates=False
        ),
        Program(transfer.masked_autoencoder, transfer.patches),
        Program(supervised.endpoint_layer, supervised.endpoint_data),
        Program(supervised.own_test_step, supervised.labelled),
        Program(supervised.ctc_captcha, supervised.captchas),
        Program(supervised.strings_and_tables, supervised.strings, loads=True),
        Program(supervised.word_vectors, supervised.word_data, loads=True),
        Program(
            supervised.fraud,
            supervised.labelled,
            config={"class_weight": {0: 0.5, 1: 3.0}},
            fit={"class_weight": {0: 0.5, 1: 3.0}},
        ),
        Program(supervised.mixture_of_experts, supervised.labelled),
        Program(supervised.graph_attention, supervised.nodes),
        Program(supervised.small_gpt, supervised.sentences, loads=True),
        Program(
            supervised.captioning,
            supervised.captions,
            features=lambda arrays: (arrays[0], arrays[1][:, 0]),
        ),
    )
}


def of_fit(program: Program) -> Any:
    """Returns the training data as `fit` takes them, and its arguments for 20 steps."""
    arrays = program.arrays(1)
    if isinstance(arrays, keras.utils.PyDataset):
        return {"x": arrays, "epochs": 4}
    return {"x": Data(program.name).train(), "steps_per_epoch": 20}


class Data:
    """The three splits of a program."""

    def __init__(self, program: str) -> None:
        self.program = PROGRAMS[program]

    def _split(self, seed: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(self.program.arrays(seed))

    def train(self) -> tf.data.Dataset:
        return self._split(1).repeat().batch(self.program.batch)

    def validation(self) -> tf.data.Dataset:
        return self._split(2).batch(self.program.batch)

    def test(self) -> tf.data.Dataset:
        return self._split(3).batch(self.program.batch)


def features(program: str) -> tf.data.Dataset:
    """Batches of the features of the test split."""
    arrays = PROGRAMS[program].arrays(3)
    return tf.data.Dataset.from_tensor_slices((PROGRAMS[program].features(arrays),)).batch(BATCH)
