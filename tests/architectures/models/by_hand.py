"""Transformers written with Keras's layers, under names that people give them.

A function builds the small variant, or the full one.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers


class SelfAttention(keras.Layer):
    """Attention by plain Dense layers, with fewer heads for keys and values where asked."""

    def __init__(
        self, heads: int, width: int, *, shared: int = 1, fused: bool = False, **options: Any
    ) -> None:
        super().__init__(**options)
        self.heads, self.size, self.shared = heads, width // heads, shared
        inner = width // shared
        self.fused = layers.Dense(3 * width, name="qkv") if fused else None
        if not fused:
            self.query = layers.Dense(width, name="query")
            self.key = layers.Dense(inner, name="key")
            self.value = layers.Dense(inner, name="value")

    def build(self, shape: Any) -> None:
        parts = [self.fused] if self.fused else [self.query, self.key, self.value]
        for part in parts:
            part.build(shape)

    def call(self, hidden: Any, mask: Any = None) -> Any:
        if self.fused:
            query, key, value = keras.ops.split(self.fused(hidden), 3, axis=-1)
        else:
            query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        query, key, value = (self._heads(part) for part in (query, key, value))
        key, value = (keras.ops.repeat(part, self.shared, axis=1) for part in (key, value))
        scores = query @ keras.ops.swapaxes(key, -1, -2) / self.size**0.5
        if mask is not None:
            scores = keras.ops.where(mask, scores, -1e9)
        merged = keras.ops.swapaxes(keras.ops.softmax(scores) @ value, 1, 2)
        return keras.ops.reshape(merged, (*keras.ops.shape(merged)[:2], self.heads * self.size))

    def _heads(self, part: Any) -> Any:
        shape = (*keras.ops.shape(part)[:2], part.shape[-1] // self.size, self.size)
        return keras.ops.swapaxes(keras.ops.reshape(part, shape), 1, 2)


class Named(keras.Layer):
    """A layer that holds others under a path of names."""

    def __init__(self, name: str, **parts: keras.Layer) -> None:
        super().__init__(name=name)
        self.parts = list(parts.values())
        for key, part in parts.items():
            setattr(self, key, part)


class Residual(Named):
    """Adds a projection to the input of its block, and normalises the sum."""

    def __init__(self, width: int, epsilon: float = 1e-12) -> None:
        norm = layers.LayerNormalization(epsilon=epsilon, name="LayerNorm")
        super().__init__("output", dense=layers.Dense(width, name="dense"), norm=norm)

    def call(self, hidden: Any, before: Any) -> Any:
        return self.norm(self.dense(hidden) + before)


class BertAttention(Named):
    """Attention as Google's and Hugging Face's code of BERT names it."""

    def __init__(self, heads: int, width: int) -> None:
        attend = SelfAttention(heads, width, name="self")
        super().__init__("attention", attend=attend, project=Residual(width))

    def call(self, hidden: Any) -> Any:
        return self.project(self.attend(hidden), hidden)


class BertLayer(Named):
    """One block of BERT as Google's and Hugging Face's code names it."""

    def __init__(self, number: int, heads: int, width: int, inner: int) -> None:
        dense = layers.Dense(inner, activation="gelu", name="dense")
        super().__init__(
            f"layer_{number}",
            attention=BertAttention(heads, width),
            intermediate=keras.Sequential([dense], name="intermediate"),
            output_=Residual(width),
        )

    def call(self, hidden: Any) -> Any:
        hidden = self.attention(hidden)
        return self.output_(self.intermediate(hidden), hidden)


class BertEmbeddings(Named):
    """The sum of words, positions and types, normalised."""

    def __init__(self, words: int, positions: int, width: int) -> None:
        super().__init__(
            "embeddings",
            words=layers.Embedding(words, width, name="word_embeddings"),
            positions=layers.Embedding(positions, width, name="position_embeddings"),
            types=layers.Embedding(2, width, name="token_type_embeddings"),
            norm=layers.LayerNormalization(epsilon=1e-12, name="LayerNorm"),
        )

    def call(self, tokens: Any, types: Any) -> Any:
        positions = keras.ops.arange(keras.ops.shape(tokens)[1])
        return self.norm(self.words(tokens) + self.positions(positions) + self.types(types))


class BertByHand(keras.Model):
    """BERT with Dense layers, under Hugging Face's names."""

    def __init__(
        self, *, words: int, positions: int, depth: int, heads: int, width: int, inner: int
    ) -> None:
        super().__init__(name="bert_by_hand")
        self.embed = BertEmbeddings(words, positions, width)
        blocks = {f"layer_{n}": BertLayer(n, heads, width, inner) for n in range(depth)}
        self.encoder = Named("encoder", **blocks)
        self.pool = layers.Dense(width, activation="tanh", name="pooler")

    def call(self, inputs: Any) -> Any:
        hidden = self.embed(inputs["token_ids"], inputs["segment_ids"])
        for block in self.encoder.parts:
            hidden = block(hidden)
        return {"sequence_output": hidden, "pooled_output": self.pool(hidden[:, 0])}


def bert(small: bool) -> keras.Model:
    """Builds BERT under Hugging Face's names."""
    sizes = (20, 16, 2, 2, 8, 12) if small else (1000, 512, 12, 6, 96, 384)
    keys = ("words", "positions", "depth", "heads", "width", "inner")
    model = BertByHand(**dict(zip(keys, sizes, strict=True)))
    tokens = keras.ops.zeros((1, 4), "int32")
    model({"token_ids": tokens, "segment_ids": tokens})
    return model


class GptBlock(keras.Layer):
    """A block of GPT with one Dense layer for query, key and value."""

    def __init__(self, heads: int, width: int, name: str) -> None:
        super().__init__(name=name)
        self.norm1 = layers.LayerNormalization(epsilon=1e-5, name="norm1")
        self.attention = SelfAttention(heads, width, fused=True, name="attention")
        self.project = layers.Dense(width, name="project")
        self.norm2 = layers.LayerNormalization(epsilon=1e-5, name="norm2")
        self.widen = layers.Dense(4 * width, name="widen")
        self.narrow = layers.Dense(width, name="narrow")

    def call(self, hidden: Any) -> Any:
        length = keras.ops.shape(hidden)[1]
        mask = keras.ops.tril(keras.ops.ones((length, length), "bool"))
        hidden = hidden + self.project(self.attention(self.norm1(hidden), mask=mask))
        inside = keras.activations.gelu(self.widen(self.norm2(hidden)), approximate=True)
        return hidden + self.narrow(inside)


class Places(keras.Layer):
    """Adds learned positions."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__(name="positions")
        self.places = layers.Embedding(positions, width, name="position_embedding")

    def call(self, hidden: Any) -> Any:
        return hidden + self.places(keras.ops.arange(keras.ops.shape(hidden)[1]))


def gpt(small: bool) -> keras.Model:
    """Builds GPT of blocks, as tutorials do."""
    words, positions, depth, heads, width = (20, 16, 2, 2, 8) if small else (1000, 64, 12, 6, 96)
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    hidden = layers.Embedding(words, width, name="token_embedding")(tokens)
    hidden = Places(positions, width)(hidden)
    for number in range(depth):
        hidden = GptBlock(heads, width, f"block_{number}")(hidden)
    hidden = layers.LayerNormalization(epsilon=1e-5, name="final_norm")(hidden)
    return keras.Model(tokens, hidden, name="gpt")


class LlamaBlock(keras.Layer):
    """A block of Llama with the names of the paper's code; positions are not turned here."""

    def __init__(self, heads: int, width: int, inner: int, *, shared: int, name: str) -> None:
        super().__init__(name=name)
        self.attention_norm = layers.RMSNormalization(epsilon=1e-6, name="attention_norm")
        self.wq = layers.Dense(width, use_bias=False, name="wq")
        self.wk = layers.Dense(width // shared, use_bias=False, name="wk")
        self.wv = layers.Dense(width // shared, use_bias=False, name="wv")
        self.wo = layers.Dense(width, use_bias=False, name="wo")
        self.ffn_norm = layers.RMSNormalization(epsilon=1e-6, name="ffn_norm")
        self.w1 = layers.Dense(inner, use_bias=False, activation="silu", name="w1")
        self.w2 = layers.Dense(width, use_bias=False, name="w2")
        self.w3 = layers.Dense(inner, use_bias=False, name="w3")
        self.heads, self.shared = heads, shared

    def call(self, hidden: Any) -> Any:
        normed = self.attention_norm(hidden)
        query, key, value = self.wq(normed), self.wk(normed), self.wv(normed)
        size = query.shape[-1] // self.heads
        shape = (*keras.ops.shape(hidden)[:2], -1, size)
        merged = keras.ops.dot_product_attention(
            keras.ops.reshape(query, shape),
            keras.ops.repeat(keras.ops.reshape(key, shape), self.shared, axis=2),
            keras.ops.repeat(keras.ops.reshape(value, shape), self.shared, axis=2),
            is_causal=True,
        )
        hidden = hidden + self.wo(keras.ops.reshape(merged, keras.ops.shape(hidden)))
        normed = self.ffn_norm(hidden)
        return hidden + self.w2(self.w1(normed) * self.w3(normed))


def llama(small: bool) -> keras.Model:
    """Builds Llama with three heads of queries for one of keys, and a Dense output."""
    words, depth, heads, width, inner = (20, 2, 3, 12, 20) if small else (1000, 12, 6, 96, 256)
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    hidden = layers.Embedding(words, width, name="tok_embeddings")(tokens)
    for number in range(depth):
        hidden = LlamaBlock(heads, width, inner, shared=3, name=f"layer_{number}")(hidden)
    hidden = layers.RMSNormalization(epsilon=1e-6, name="norm")(hidden)
    hidden = layers.Dense(words, use_bias=False, name="output")(hidden)
    return keras.Model(tokens, hidden, name="llama")


class Positions(keras.Layer):
    """Puts a token before patches, and adds learned positions."""

    def build(self, shape: Any) -> None:
        self.token = self.add_weight(shape=(1, 1, shape[-1]), name="token")
        self.places = layers.Embedding(shape[1] + 1, shape[-1], name="positions")
        self.places.build(None)
        self.count = shape[1] + 1

    def call(self, patches: Any) -> Any:
        token = keras.ops.repeat(self.token, keras.ops.shape(patches)[0], axis=0)
        return keras.ops.concatenate([token, patches], axis=1) + self.places(
            keras.ops.arange(self.count)
        )


def vit(small: bool) -> keras.Model:
    """Builds a ViT as keras.io's example does: layers have the names that Keras counts up."""
    size, patch, depth, heads, width = (16, 8, 2, 2, 8) if small else (64, 16, 12, 6, 96)
    images = keras.Input((size, size, 3))
    hidden = layers.Conv2D(width, patch, strides=patch)(images)
    hidden = Positions()(layers.Reshape((-1, width))(hidden))
    for _ in range(depth):
        normed = layers.LayerNormalization(epsilon=1e-6)(hidden)
        attention = layers.MultiHeadAttention(heads, width // heads)
        hidden = layers.Add()([hidden, attention(normed, normed)])
        normed = layers.LayerNormalization(epsilon=1e-6)(hidden)
        inside = layers.Dense(4 * width, activation="gelu")(normed)
        hidden = layers.Add()([hidden, layers.Dense(width)(inside)])
    hidden = layers.LayerNormalization(epsilon=1e-6)(hidden)
    return keras.Model(images, layers.Dense(10)(hidden[:, 0]), name="vit")
