"""Writes the weights of sources and what they compute: `record.py FOLDER [--small] NAME...`.

NAME is a function of `sources/`, such as `cnns.resnet50`. Needs PyTorch, safetensors and the
libraries of the sources. For each source it writes NAME.pt, NAME.safetensors and NAME.npz, the
reference of a proof; the small ones with the outputs of all modules.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

import numpy as np
import safetensors.torch
import torch


def randomise(model):
    """Gives constants, such as norms and their statistics, values that tell one from the other."""
    for name, tensor in model.state_dict().items():
        if name.endswith("running_mean"):
            tensor.normal_(0, 0.1)
        elif name.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
        elif tensor.is_floating_point() and tensor.unique().numel() == 1:
            if tensor.max() == 0:
                tensor.normal_(0, 0.1)
            else:
                tensor.uniform_(0.5, 1.5)


def call(model, inputs):
    """Returns the model's output for a tensor, or for several by name."""
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def activations_of(model, inputs):
    """Returns the first output of every module with weights, and what is known of all modules."""
    activations, modules = {}, {}

    def hook_of(name):
        def hook(module, arguments, output):
            first = output[0] if isinstance(output, (tuple, list)) else output
            if isinstance(first, torch.Tensor):
                activations.setdefault(f"activations/{name}", first.detach().clone().numpy())

        return hook

    for name, module in model.named_modules():
        if name and any(True for _ in module.parameters(recurse=False)):
            module.register_forward_hook(hook_of(name))
        settings = {
            key: value
            for key, value in vars(module).items()
            if isinstance(value, (bool, int, float, str, tuple)) and key[0] != "_"
        }
        modules[name] = {"type": type(module).__name__, **settings}
    call(model, inputs)
    return activations, modules


def entries(kind, value):
    """Returns the entries of one array, or of several by name."""
    if isinstance(value, torch.Tensor):
        return {kind: value.numpy()}
    return {
        f"{kind}/{key}": tensor.numpy()
        for key, tensor in value.items()
        if isinstance(tensor, torch.Tensor)
    }


def record(name, folder, small, weights=None):
    """Writes the files of one source, with its own weights or with the ones in a file."""
    module, function = name.split(".")
    torch.manual_seed(0)
    model, inputs = getattr(importlib.import_module(f"sources.{module}"), function)(small)
    model.eval()
    with torch.no_grad():
        randomise(model)
        if weights is not None:
            model.load_state_dict(safetensors.torch.load_file(weights))
        outputs = call(model, inputs)
        activations, modules = activations_of(model, inputs) if small else ({}, {})
    if hasattr(model, "write"):
        model.write(folder / name)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    torch.save(state, folder / f"{name}.pt")
    safetensors.torch.save_file(state, folder / f"{name}.safetensors")
    metadata = {"framework": f"torch {torch.__version__.split('+')[0]}", "modules": modules}
    if isinstance(inputs, torch.Tensor) and inputs.ndim == 4:
        metadata["layout"] = "channels_first"
    np.savez_compressed(
        folder / f"{name}.npz",
        **entries("inputs", inputs),
        **entries("outputs", outputs),
        **activations,
        metadata=json.dumps(metadata, default=str),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--weights", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.names:
        record(name, arguments.folder, arguments.small, arguments.weights)
