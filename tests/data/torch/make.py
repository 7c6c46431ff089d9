"""Writes small files with the PyTorch that runs this, and what `torch.load` reads from them.

    python make.py [FOLDER]

Each `NAME.pt` has a `NAME.npz` with the values of its tensors. PyTorch 1.4 writes only the layout
without a zip archive, 1.6 the first zip archives; see README.md for the files that are kept.
"""

import argparse
import os
import sys

import numpy as np
import torch

VERSION = ".".join(torch.__version__.split(".")[:2])


class Options:
    """Stands for the hyperparameters that Lightning keeps: a class that only its writer has."""

    def __init__(self):
        self.lr = 0.1


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 3, 3)
        self.norm = torch.nn.BatchNorm2d(3)
        self.head = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 3, bias=False))
        self.tied = self.head[0]

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).mean((2, 3)))


def views():
    """Tensors of every element type and every kind of view."""
    base = torch.arange(24.0).reshape(2, 3, 4)
    tensors = {
        "base": base,
        "transposed": base.permute(2, 0, 1),
        "sliced": base[1, 1:, ::2],
        "expanded": torch.tensor([1.5, 2.5]).reshape(2, 1).expand(2, 5),
        "scalar": torch.tensor(3.25),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
        "tied": base,
    }
    kinds = "float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128"
    kinds += " float8_e4m3fn float8_e5m2 uint16 uint32 uint64"
    for kind in kinds.split():
        if hasattr(torch, kind):
            values = torch.arange(5).to(torch.float32) - (0 if "uint" in kind else 1)
            try:
                tensors[kind] = values.to(getattr(torch, kind))
            except RuntimeError:
                print("no", kind, "in", VERSION)
    if hasattr(torch.Tensor, "conj_physical"):
        number = torch.tensor([1 + 2j, 3 - 1j])
        tensors["conjugated"] = number.conj()
        tensors["negated"] = torch._neg_view(torch.tensor([1.0, -2.0]))
    return tensors


def lightning(net):
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(2, 2, 4, 4)).sum().backward()
    optimizer.step()
    return {
        "epoch": 3,
        "global_step": 120,
        "pytorch-lightning_version": "1.0.0",
        "state_dict": {"model." + name: value for name, value in net.state_dict().items()},
        "optimizer_states": [optimizer.state_dict()],
        "hyper_parameters": {"options": Options(), "path": os.path.join("a", "b")},
        "callbacks": {Options: {"best": torch.tensor(0.5)}},
    }


def expected(tensors):
    """Arrays of the same bytes, with the element type in the name: NumPy lacks some of them."""
    arrays = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        if hasattr(tensor, "resolve_conj"):
            tensor = tensor.resolve_conj().resolve_neg()
        tensor = tensor.contiguous()
        kind = str(tensor.dtype).replace("torch.", "")
        if kind == "bfloat16" or kind.startswith("float8"):
            words = torch.int16 if kind == "bfloat16" else torch.int8
            if hasattr(torch, "frombuffer"):
                array = tensor.view(words).numpy()
            else:  # All of these values are exact in float32, whose first half bfloat16 is.
                array = (tensor.float().numpy().view(np.uint32) >> 16).astype(np.uint16)
        else:
            array = tensor.numpy()
        arrays[kind + ":" + name] = array
    return arrays


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default=os.path.dirname(os.path.abspath(__file__)))
    folder = parser.parse_args().folder
    torch.manual_seed(7)
    net = Net()

    def save(name, saved, tensors, **options):
        path = os.path.join(folder, name + "-" + VERSION)
        torch.save(saved, path + ".pt", **options)
        np.savez_compressed(path + ".npz", **expected(tensors))

    save("views", views(), views())
    save("state_dict", net.state_dict(), net.state_dict())
    checkpoint = lightning(net)
    save("lightning", checkpoint, checkpoint["state_dict"])
    save("module", net, net.state_dict())
    if VERSION not in ("1.4", "1.5"):
        legacy = {"_use_new_zipfile_serialization": False}
        save("views_legacy", views(), views(), **legacy)
        save("state_dict_legacy", net.state_dict(), net.state_dict(), **legacy)


if __name__ == "__main__":
    sys.exit(main())
