"""Writes a small model by `save_pretrained` of `transformers`, and the values of its tensors.

    python pretrained.py FOLDER

`FOLDER/NAME` is the model as safetensors or as PyTorch files, whole or in shards, and
`FOLDER/NAME.npz` what its `state_dict()` holds. Versions that no longer write PyTorch files
themselves save the same state dict by `torch.save`.
"""

import inspect
import json
import os
import sys

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM

SIZES = {"whole": "1GB", "sharded": "20KB"}


def main():
    (folder,) = sys.argv[1:]
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
    )
    model = BertForMaskedLM(config)
    writes_both = "safe_serialization" in inspect.signature(model.save_pretrained).parameters
    values = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    for name, size in SIZES.items():
        for form in ("safetensors", "torch"):
            path = os.path.join(folder, f"{form}-{name}")
            os.makedirs(path)
            if writes_both:
                model.save_pretrained(
                    path, max_shard_size=size, safe_serialization=form == "safetensors"
                )
            elif form == "safetensors":
                model.save_pretrained(path, max_shard_size=size)
            else:
                save_as_torch(path, model.state_dict(), is_sharded=name == "sharded")
            np.savez(path + ".npz", **values)


def save_as_torch(path, state_dict, is_sharded):
    """Writes what earlier versions wrote: `pytorch_model.bin`, or its shards and their index."""
    if not is_sharded:
        torch.save(state_dict, os.path.join(path, "pytorch_model.bin"))
        return
    names = list(state_dict)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        shard = f"pytorch_model-{number:05d}-of-00002.bin"
        torch.save({name: state_dict[name] for name in part}, os.path.join(path, shard))
        weight_map.update(dict.fromkeys(part, shard))
    with open(os.path.join(path, "pytorch_model.bin.index.json"), "w") as file:
        json.dump({"metadata": {}, "weight_map": weight_map}, file)


if __name__ == "__main__":
    main()
