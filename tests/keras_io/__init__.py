"""Programs in the style of keras.io, small and written anew, and how each is run here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from tests.keras_io import generative, supervised, transfer

BATCH = 8


@dataclass(frozen=True)
class Program:
    """A program: its model, and the arrays of a split by seed.

    Attributes:
      model: the function that builds and compiles the model.
      arrays: seed of a split -> what `fit` would take as one batch of all examples.
      batch: examples in a batch.
      features: what to predict from, of what `arrays` returns.
      config: fields of the configuration besides data and model.
      fit: arguments of `fit` besides.
      evaluates: whether the model has a loss or a `test_step`.
      saved: whether Keras can load the model again from a `.keras` file alone.
    """

    model: Callable[[], keras.Model]
    arrays: Callable[[int], Any]
    batch: int = BATCH
    features: Callable[[Any], Any] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    fit: Mapping[str, Any] = field(default_factory=dict)
    evaluates: bool = True
    objective: str = "validation/loss"

    @property
    def name(self) -> str:
        return self.model.__name__


PROGRAMS = {
    program.name: program
    for program in (
        Program(generative.vae, generative.vae_data),
        Program(generative.conditional_gan, generative.labelled, evaluates=False),
        Program(generative.wgan_gp, generative.vae_data, evaluates=False),
        Program(generative.pixel_cnn, generative.images),
        Program(generative.real_nvp, generative.vae_data),
        Program(generative.cycle_gan, generative.pairs, evaluates=False),
        Program(generative.ddim, generative.vae_data, objective="validation/image_loss"),
        Program(transfer.distillation_by_train_step, transfer.labelled),
        Program(transfer.distillation_by_compute_loss, transfer.labelled),
        Program(transfer.siamese, transfer.triplets),
        Program(transfer.supervised_contrastive, transfer.labelled),
        Program(transfer.contrastive_classifier, transfer.labelled),
        Program(transfer.masked_language_model, transfer.masked_tokens),
        Program(transfer.sim_siam, transfer.views, evaluates=False),
        Program(transfer.masked_autoencoder, transfer.patches),
        Program(supervised.endpoint_layer, supervised.endpoint_data),
        Program(supervised.ctc_captcha, supervised.captchas),
        Program(supervised.strings_and_tables, supervised.strings),
        Program(supervised.word_vectors, supervised.word_data),
        Program(
            supervised.fraud,
            supervised.labelled,
            config={"class_weight": {0: 0.5, 1: 3.0}},
            fit={"class_weight": {0: 0.5, 1: 3.0}},
        ),
        Program(supervised.mixture_of_experts, supervised.labelled),
        Program(supervised.graph_attention, supervised.nodes),
        Program(supervised.small_gpt, supervised.sentences),
        Program(supervised.captioning, supervised.captions),
    )
}


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
