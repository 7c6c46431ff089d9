"""Recurrent nets and PyTorch's transformer of Keras's layers: the small variant or the full one."""

from __future__ import annotations

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
