"""Recurrent nets and transformers of PyTorch, Hugging Face and timm, with seeded random weights.

A function returns the network and its inputs, under the names of the Keras model's; `small` asks
for one of a few thousand weights.
"""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
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
    ViTForImageClassification,
    ViTModel,
)


def renamed(model, inputs, outputs):
    """Lets a model take and return names of Keras: theirs -> its own; or return one output."""
    forward = model.forward

    def run(**given):
        result = forward(**{inputs[name]: value for name, value in given.items()})
        if isinstance(outputs, str):
            return result[outputs]
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
    return Recurrent(kind, size, units), torch.randn(2, 7, size)


def transformer_encoder(small):
    width, heads, inner, depth = (8, 2, 12, 2) if small else (256, 8, 1024, 6)
    layer = nn.TransformerEncoderLayer(width, heads, inner, batch_first=True)
    encoder = nn.TransformerEncoder(
        layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False
    )
    return encoder, torch.randn(2, 7, width)


def tokens(words):
    """Returns the tokens of two texts, none of which is padding."""
    token_ids = torch.randint(2, words, (2, 9)).int()
    return {"token_ids": token_ids, "padding_mask": torch.ones_like(token_ids)}


def _sizes(small, **names):
    sizes = (20, 2, 2, 8, 32) if small else (30522, 12, 12, 768, 3072)
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
    outputs = "last_hidden_state"
    return renamed(model, TEXT, outputs), tokens(sizes["vocab_size"])


def gpt2(small):
    words, depth, heads, width = (20, 2, 2, 8) if small else (50257, 12, 12, 768)
    config = GPT2Config(
        vocab_size=words,
        n_layer=depth,
        n_head=heads,
        n_embd=width,
        use_cache=False,
        n_positions=16 if small else 1024,
        n_inner=32 if small else 3072,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2Model(config)
    return renamed(model, TEXT, "last_hidden_state"), tokens(words)


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
    return renamed(model, TEXT, "last_hidden_state"), tokens(words)


def _vit_config(small, **others):
    width, depth, heads, inner = (8, 2, 2, 32) if small else (768, 12, 12, 3072)
    size, patch = (16, 8) if small else (224, 16)
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=inner,
        image_size=size,
        patch_size=patch,
        **others,
    )
    return config, torch.randn(2, 3, size, size)


def _with_output(model, name):
    forward = model.forward
    model.forward = lambda images: forward(images)[name]
    return model


def vit(small):
    config, images = _vit_config(small)
    return _with_output(ViTModel(config, add_pooling_layer=False), "last_hidden_state"), images


def vit_classifier(small):
    config, images = _vit_config(small, num_labels=10)
    return _with_output(ViTForImageClassification(config), "logits"), images


def bert_shards(small):
    """The same in several files and an index, as Hugging Face saves what is large."""
    model, inputs = bert(small)
    size = "2KB" if small else "100MB"
    model.write = lambda path: model.save_pretrained(f"{path}.shards", max_shard_size=size)
    return model, inputs


def _adapted(model, *modules):
    adapted = get_peft_model(model, LoraConfig(r=2, lora_alpha=7, target_modules=[*modules]))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.1)
    return adapted


def lora_dense(small):
    """An adapter of queries and values, not merged."""
    model, inputs = bert(small)
    return _adapted(model, "query", "value"), inputs


def lora_einsum(small):
    """An adapter of the projections after attention, not merged."""
    model, images = vit_classifier(small)
    return _adapted(model, "o_proj"), images
