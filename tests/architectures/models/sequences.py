"""Keras counterparts of recurrent nets and transformers, of Keras's layers and from KerasHub.

A function builds the small variant, whose values are kept as data, or the full one.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
from keras import layers


def bidirectional_lstm(small: bool) -> keras.Model:
    """Builds two bidirectional LSTM layers and a classifier."""
    return _recurrent(layers.LSTM, small)


def bidirectional_gru(small: bool) -> keras.Model:
    """Builds two bidirectional GRU layers and a classifier."""
    return _recurrent(layers.GRU, small)


def _recurrent(kind: type[keras.Layer], small: bool) -> keras.Model:
    size, units = (6, 5) if small else (96, 128)
    sequence = hidden = keras.Input((None, size), name="sequence")
    for layer in (1, 2):
        recurrent = kind(units, return_sequences=True, name=kind.__name__.lower())
        hidden = layers.Bidirectional(recurrent, name=f"bidirectional_{layer}")(hidden)
    return keras.Model(sequence, layers.Dense(4, name="classifier")(hidden))


def transformer_encoder(small: bool) -> keras.Model:
    """Builds the layers of `torch.nn.TransformerEncoder`, normalised after each part."""
    width, heads, inner, depth = (8, 2, 12, 2) if small else (256, 8, 1024, 6)
    sequence = hidden = keras.Input((None, width), name="sequence")
    for block in range(depth):
        attention = layers.MultiHeadAttention(heads, width // heads, name=f"block{block}_attention")
        hidden = layers.LayerNormalization(epsilon=1e-5, name=f"block{block}_norm1")(
            hidden + attention(hidden, hidden)
        )
        inside = layers.Dense(inner, activation="relu", name=f"block{block}_dense1")(hidden)
        inside = layers.Dense(width, name=f"block{block}_dense2")(inside)
        hidden = layers.LayerNormalization(epsilon=1e-5, name=f"block{block}_norm2")(
            hidden + inside
        )
    return keras.Model(sequence, layers.LayerNormalization(epsilon=1e-5, name="norm")(hidden))


def _backbone(name: str, sizes: Sequence[int], length: int) -> keras.Model:
    import keras_hub

    return getattr(keras_hub.models, name)(*sizes, dropout=0.0, max_sequence_length=length)


def bert(small: bool) -> keras.Model:
    """Builds KerasHub's BERT."""
    sizes = (20, 2, 2, 8, 12) if small else (30522, 12, 12, 768, 3072)
    return _backbone("BertBackbone", sizes, 16 if small else 512)


def roberta(small: bool) -> keras.Model:
    """Builds KerasHub's RoBERTa, which has no token types."""
    sizes = (20, 2, 2, 8, 12) if small else (30522, 12, 12, 768, 3072)
    return _backbone("RobertaBackbone", sizes, 16 if small else 512)


def gpt2(small: bool) -> keras.Model:
    """Builds KerasHub's GPT2."""
    sizes = (20, 2, 2, 8, 12) if small else (50257, 12, 12, 768, 3072)
    return _backbone("GPT2Backbone", sizes, 16 if small else 1024)


def llama(small: bool) -> keras.Model:
    """Builds KerasHub's Llama."""
    import keras_hub

    sizes = (20, 2, 4, 16, 24) if small else (32000, 8, 8, 512, 1408)
    return keras_hub.models.LlamaBackbone(*sizes, 2, tie_word_embeddings=True)


def vit(small: bool) -> keras.Model:
    """Builds KerasHub's ViT."""
    import keras_hub

    sizes = ((16, 16, 3), 8, 2, 2, 8, 12) if small else ((224, 224, 3), 16, 12, 12, 768, 3072)
    return keras_hub.models.ViTBackbone(*sizes, layer_norm_epsilon=1e-12)
