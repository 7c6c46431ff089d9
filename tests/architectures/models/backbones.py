"""KerasHub's backbones of transformers: the small variant, or the full one."""

from __future__ import annotations

import keras
import keras_hub

SMALL = (20, 2, 2, 8, 32)
BASE = (30522, 12, 12, 768, 3072)


def bert(small: bool) -> keras.Model:
    """Builds KerasHub's BERT with the exact GELU of Hugging Face's; it approximates it itself."""
    model = keras_hub.models.BertBackbone(
        *(SMALL if small else BASE), max_sequence_length=16 if small else 512
    )
    for layer in model.transformer_layers:
        layer._feedforward_intermediate_dense.activation = keras.activations.gelu
    return model


def roberta(small: bool) -> keras.Model:
    """Builds KerasHub's RoBERTa, which has no token types."""
    return keras_hub.models.RobertaBackbone(
        *(SMALL if small else BASE), max_sequence_length=16 if small else 512
    )


def gpt2(small: bool) -> keras.Model:
    """Builds KerasHub's GPT2."""
    return keras_hub.models.GPT2Backbone(
        *(SMALL if small else (50257, *BASE[1:])), max_sequence_length=16 if small else 1024
    )


def llama(small: bool) -> keras.Model:
    """Builds KerasHub's Llama, whose queries share keys and values."""
    sizes = (20, 2, 4, 16, 24) if small else (32000, 8, 8, 512, 1408)
    return keras_hub.models.LlamaBackbone(*sizes, 2, tie_word_embeddings=True)


def vit(small: bool) -> keras.Model:
    """Builds KerasHub's ViT."""
    sizes = ((16, 16, 3), 8, 2, 2, 8, 32) if small else ((224, 224, 3), 16, 12, 12, 768, 3072)
    return keras_hub.models.ViTBackbone(*sizes, layer_norm_epsilon=1e-12)
