"""Recurrent nets and transformers of PyTorch, Hugging Face and timm, with seeded random weights.

A function returns the network and its inputs, under the names of the Keras model's; `small` asks
for one of a few thousand weights.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    RobertaConfig,
    RobertaModel,
    ViTConfig,
    ViTModel,
)


def renamed(model, inputs, outputs, **fixed):
    """Lets a model take and return names of Keras: theirs -> its own."""
    forward = model.forward

    def run(*images, **given):
        given |= dict(zip(inputs, images, strict=False))
        result = forward(**{inputs[name]: value for name, value in given.items()}, **fixed)
        return {name: result[key] for name, key in outputs.items()}

    model.forward = run
    return model


class Recurrent(nn.Module):
    """Two bidirectional layers and a classifier."""

    def __init__(self, kind, size, units):
        super().__init__()
        self.rnn = kind(size, units, num_layers=2, bidirectional=True, batch_first=True)
        self.classifier = nn.Linear(2 * units, 4)

    def forward(self, sequence):
        return self.classifier(self.rnn(sequence)[0])


def bidirectional_lstm(small):
    return _recurrent(nn.LSTM, small)


def bidirectional_gru(small):
    return _recurrent(nn.GRU, small)


def _recurrent(kind, small):
    size, units = (6, 5) if small else (96, 128)
    return Recurrent(kind, size, units), {"sequence": torch.randn(2, 7, size)}


def transformer_encoder(small):
    width, heads, inner, depth = (8, 2, 12, 2) if small else (256, 8, 1024, 6)
    layer = nn.TransformerEncoderLayer(width, heads, inner, batch_first=True)
    encoder = nn.TransformerEncoder(
        layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False
    )
    forward = encoder.forward
    encoder.forward = lambda sequence: forward(sequence)
    return encoder, {"sequence": torch.randn(2, 7, width)}


def tokens(words, length=9, pad=0):
    """Returns tokens of two texts, the second one padded."""
    token_ids = torch.randint(2, words, (2, length))
    token_ids[1, -3:] = pad
    padding_mask = (token_ids != pad).int()
    return {"token_ids": token_ids.int(), "padding_mask": padding_mask}


def _sizes(small, **names):
    sizes = (20, 2, 2, 8, 12) if small else (30522, 12, 12, 768, 3072)
    keys = ("vocab_size", "num_hidden_layers", "num_attention_heads", "hidden_size")
    return dict(zip((*keys, "intermediate_size"), sizes, strict=True)) | names


TEXT = {"token_ids": "input_ids", "padding_mask": "attention_mask"}


def bert(small):
    sizes = _sizes(small, max_position_embeddings=16 if small else 512)
    model = BertModel(BertConfig(**sizes))
    inputs = tokens(sizes["vocab_size"])
    inputs["segment_ids"] = torch.randint(0, 2, inputs["token_ids"].shape).int()
    names = {**TEXT, "segment_ids": "token_type_ids"}
    outputs = {"sequence_output": "last_hidden_state", "pooled_output": "pooler_output"}
    return renamed(model, names, outputs), inputs


def roberta(small):
    sizes = _sizes(small, max_position_embeddings=18 if small else 514, type_vocab_size=1)
    model = RobertaModel(
        RobertaConfig(**sizes, pad_token_id=1, layer_norm_eps=1e-5), add_pooling_layer=False
    )
    outputs = {"outputs": "last_hidden_state"}
    return renamed(model, TEXT, outputs), tokens(sizes["vocab_size"], pad=1)


def gpt2(small):
    words, depth, heads, width = (20, 2, 2, 8) if small else (50257, 12, 12, 768)
    config = GPT2Config(
        vocab_size=words,
        n_layer=depth,
        n_head=heads,
        n_embd=width,
        use_cache=False,
        n_positions=16 if small else 1024,
        n_inner=12 if small else 3072,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2Model(config)
    return renamed(model, TEXT, {"outputs": "last_hidden_state"}), tokens(words)


def llama(small):
    """Four or eight heads of queries share two heads of keys and values."""
    words, depth, heads, width, inner = (20, 2, 4, 16, 24) if small else (32000, 8, 8, 512, 1408)
    config = LlamaConfig(
        vocab_size=words,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        num_key_value_heads=2,
        hidden_size=width,
        intermediate_size=inner,
        max_position_embeddings=64,
        use_cache=False,
    )
    model = LlamaModel(config)
    return renamed(model, TEXT, {"outputs": "last_hidden_state"}), tokens(words)


def vit(small):
    width, depth, heads, inner = (8, 2, 2, 12) if small else (768, 12, 12, 3072)
    size, patch = (16, 8) if small else (224, 16)
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=inner,
        image_size=size,
        patch_size=patch,
    )
    model = ViTModel(config, add_pooling_layer=False)
    renamed(model, {"images": "pixel_values"}, {"outputs": "last_hidden_state"})
    return model, {"images": torch.randn(2, 3, size, size)}
