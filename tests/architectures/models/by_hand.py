"""Transformers written with Keras's layers, under names that people give them.

A function builds the small variant, or the full one.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers


class SelfAttention(keras.Layer):
    """Attention by plain Dense layers, one for each projection or one for all."""

    def __init__(self, heads: int, width: int, *, fused: bool = False, name: str = "self") -> None:
        super().__init__(name=name)
        self.heads, self.size = heads, width // heads
        self.fused = layers.Dense(3 * width, name="qkv") if fused else None
        if not fused:
            self.query = layers.Dense(width, name="query")
            self.key = layers.Dense(width, name="key")
            self.value = layers.Dense(width, name="value")

    def call(self, hidden: Any, allowed: Any) -> Any:
        if self.fused:
            query, key, value = keras.ops.split(self.fused(hidden), 3, axis=-1)
        else:
            query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        query, key, value = (self._heads(part) for part in (query, key, value))
        scores = query @ keras.ops.swapaxes(key, -1, -2) / self.size**0.5
        scores = keras.ops.where(allowed, scores, -1e9)
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

    def __init__(self, width: int, epsilon: float) -> None:
        norm = layers.LayerNormalization(epsilon=epsilon, name="LayerNorm")
        super().__init__("output", dense=layers.Dense(width, name="dense"), norm=norm)

    def call(self, hidden: Any, before: Any) -> Any:
        return self.norm(self.dense(hidden) + before)


class BertAttention(Named):
    """Attention as Google's and Hugging Face's code of BERT names it."""

    def __init__(self, heads: int, width: int, epsilon: float) -> None:
        project = Residual(width, epsilon)
        super().__init__("attention", attend=SelfAttention(heads, width), project=project)

    def call(self, hidden: Any, allowed: Any) -> Any:
        return self.project(self.attend(hidden, allowed), hidden)


class BertLayer(Named):
    """One block of BERT as Google's and Hugging Face's code names it."""

    def __init__(self, number: int, heads: int, *, width: int, inner: int, epsilon: float) -> None:
        dense = layers.Dense(inner, activation="gelu", name="dense")
        super().__init__(
            f"layer_{number}",
            attention=BertAttention(heads, width, epsilon),
            intermediate=keras.Sequential([dense], name="intermediate"),
            output_=Residual(width, epsilon),
        )

    def call(self, hidden: Any, allowed: Any) -> Any:
        hidden = self.attention(hidden, allowed)
        return self.output_(self.intermediate(hidden), hidden)


class BertEmbeddings(Named):
    """The sum of words, positions and types, normalised; RoBERTa has no types."""

    def __init__(
        self, words: int, positions: int, width: int, *, types: int, epsilon: float
    ) -> None:
        counts = {"word": words, "position": positions, **({"token_type": types} if types else {})}
        tables = {
            kind: layers.Embedding(count, width, name=f"{kind}_embeddings")
            for kind, count in counts.items()
        }
        norm = layers.LayerNormalization(epsilon=epsilon, name="LayerNorm")
        super().__init__("embeddings", **tables, norm=norm)

    def call(self, tokens: Any, types: Any = None) -> Any:
        positions = keras.ops.arange(keras.ops.shape(tokens)[1])
        hidden = self.word(tokens) + self.position(positions)
        return self.norm(hidden if types is None else hidden + self.token_type(types))


def bert(small: bool) -> keras.Model:
    """Builds BERT under Hugging Face's names."""
    types = keras.Input((None,), dtype="int32", name="segment_ids")
    inputs, hidden = _bert(small, 1e-12, {"segment_ids": types})
    width = hidden.shape[-1]
    pooled = layers.Dense(width, activation="tanh", name="pooler")(hidden[:, 0])
    return keras.Model(inputs, {"sequence_output": hidden, "pooled_output": pooled}, name="bert")


def roberta(small: bool) -> keras.Model:
    """Builds RoBERTa without types, whose positions begin at row 0."""
    return keras.Model(*_bert(small, 1e-5, {}), name="roberta")


def _bert(small: bool, epsilon: float, types: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    words, positions, depth, heads, width, inner = (
        (20, 16, 2, 2, 8, 32) if small else (30522, 512, 12, 12, 768, 3072)
    )
    tokens = keras.Input((None,), dtype="int32", name="token_ids")
    padding = keras.Input((None,), dtype="int32", name="padding_mask")
    allowed = keras.ops.cast(padding, "bool")[:, None, None, :]
    hidden = BertEmbeddings(words, positions, width, types=2 * len(types), epsilon=epsilon)(
        tokens, *types.values()
    )
    for number in range(depth):
        hidden = BertLayer(number, heads, width=width, inner=inner, epsilon=epsilon)(
            hidden, allowed
        )
    return {"token_ids": tokens, "padding_mask": padding, **types}, hidden


class GptBlock(keras.Layer):
    """A block of GPT, with one Dense layer for query, key and value or with Keras's attention."""

    def __init__(self, heads: int, width: int, *, fused: bool, name: str) -> None:
        super().__init__(name=name)
        self.norm1 = layers.LayerNormalization(epsilon=1e-5, name="norm1")
        if fused:
            self.attention = SelfAttention(heads, width, fused=True, name="attention")
            self.project = layers.Dense(width, name="project")
        else:
            self.attention = layers.MultiHeadAttention(heads, width // heads, name="attention")
        self.fused = fused
        self.norm2 = layers.LayerNormalization(epsilon=1e-5, name="norm2")
        self.widen = layers.Dense(4 * width, name="widen")
        self.narrow = layers.Dense(width, name="narrow")

    def call(self, hidden: Any) -> Any:
        normed = self.norm1(hidden)
        if self.fused:
            length = keras.ops.shape(hidden)[1]
            earlier = keras.ops.tril(keras.ops.ones((length, length), "bool"))
            hidden = hidden + self.project(self.attention(normed, earlier))
        else:
            hidden = hidden + self.attention(normed, normed, use_causal_mask=True)
        inside = keras.activations.gelu(self.widen(self.norm2(hidden)), approximate=True)
        return hidden + self.narrow(inside)


class Places(keras.Layer):
    """Adds learned positions."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__(name="positions")
        self.places = layers.Embedding(positions, width, name="position_embedding")

    def call(self, hidden: Any) -> Any:
        return hidden + self.places(keras.ops.arange(keras.ops.shape(hidden)[1]))


def _texts() -> tuple[dict[str, Any], Any]:
    """Returns the inputs, whose mask is not used: these texts have no padding."""
    names = ("token_ids", "padding_mask")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    return inputs, inputs["token_ids"]


def gpt(small: bool, *, fused: bool = True) -> keras.Model:
    """Builds GPT of blocks, as tutorials do."""
    words, positions, depth, heads, width = (
        (20, 16, 2, 2, 8) if small else (50257, 1024, 12, 12, 768)
    )
    inputs, tokens = _texts()
    hidden = layers.Embedding(words, width, name="token_embedding")(tokens)
    hidden = Places(positions, width)(hidden)
    for number in range(depth):
        hidden = GptBlock(heads, width, fused=fused, name=f"block_{number}")(hidden)
    hidden = layers.LayerNormalization(epsilon=1e-5, name="final_norm")(hidden)
    return keras.Model(inputs, hidden, name="gpt")


def gpt_of_heads(small: bool) -> keras.Model:
    """Builds the same with Keras's attention, which has three kernels of three axes."""
    return gpt(small, fused=False)


def _turned(part: Any) -> Any:
    """Turns queries or keys (batch, length, heads, size) by angles that grow with the position."""
    half = part.shape[-1] // 2
    rates = 10000.0 ** (-keras.ops.arange(half, dtype="float32") / half)
    places = keras.ops.arange(keras.ops.shape(part)[1], dtype="float32")
    angles = (places[:, None] * rates)[None, :, None, :]
    first, second = part[..., :half], part[..., half:]
    cosine, sine = keras.ops.cos(angles), keras.ops.sin(angles)
    return keras.ops.concatenate(
        [first * cosine - second * sine, second * cosine + first * sine], axis=-1
    )


class LlamaBlock(keras.Layer):
    """A block of Llama with the names of the paper's code."""

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
        shape = (*keras.ops.shape(hidden)[:2], -1, hidden.shape[-1] // self.heads)
        query, key, value = (
            keras.ops.reshape(part(normed), shape) for part in (self.wq, self.wk, self.wv)
        )
        key, value = (keras.ops.repeat(part, self.shared, axis=2) for part in (_turned(key), value))
        merged = keras.ops.dot_product_attention(_turned(query), key, value, is_causal=True)
        hidden = hidden + self.wo(keras.ops.reshape(merged, keras.ops.shape(hidden)))
        normed = self.ffn_norm(hidden)
        return hidden + self.w2(self.w1(normed) * self.w3(normed))


def llama(small: bool) -> keras.Model:
    """Builds Llama with two or four heads of queries for one of keys and values."""
    words, depth, heads, width, inner = (20, 2, 4, 16, 24) if small else (32000, 8, 8, 512, 1408)
    inputs, tokens = _texts()
    hidden = layers.Embedding(words, width, name="tok_embeddings")(tokens)
    for number in range(depth):
        hidden = LlamaBlock(heads, width, inner, shared=heads // 2, name=f"layer_{number}")(hidden)
    hidden = layers.RMSNormalization(epsilon=1e-6, name="norm")(hidden)
    return keras.Model(inputs, hidden, name="llama")


class Positions(keras.Layer):
    """Puts a token before patches, and adds learned positions."""

    def build(self, shape: Any) -> None:
        self.token = self.add_weight(shape=(1, 1, shape[-1]), name="class_token")
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
    size, patch, depth, heads, width = (16, 8, 2, 2, 8) if small else (224, 16, 12, 12, 768)
    images = keras.Input((size, size, 3))
    hidden = layers.Conv2D(width, patch, strides=patch)(images)
    hidden = Positions()(layers.Reshape((-1, width))(hidden))
    for _ in range(depth):
        normed = layers.LayerNormalization(epsilon=1e-12)(hidden)
        attention = layers.MultiHeadAttention(heads, width // heads)
        hidden = layers.Add()([hidden, attention(normed, normed)])
        normed = layers.LayerNormalization(epsilon=1e-12)(hidden)
        inside = layers.Dense(4 * width, activation="gelu")(normed)
        hidden = layers.Add()([hidden, layers.Dense(width)(inside)])
    hidden = layers.LayerNormalization(epsilon=1e-12)(hidden)
    return keras.Model(images, layers.Dense(10)(hidden[:, 0]), name="vit")


def vit_with_adapter(small: bool) -> keras.Model:
    """Adds adapters to the projections after attention."""
    model = vit(small)
    for layer in model.layers:
        if isinstance(layer, layers.MultiHeadAttention):
            layer._output_dense.enable_lora(rank=2, lora_alpha=7)
    return model


def bert_with_adapter(small: bool) -> keras.Model:
    """Adds adapters to queries and values."""
    model = bert(small)
    for layer in model.layers:
        if isinstance(layer, BertLayer):
            layer.attention.attend.query.enable_lora(rank=2, lora_alpha=7)
            layer.attention.attend.value.enable_lora(rank=2, lora_alpha=7)
    return model
