"""Writes a model, adapters of peft for it, and the model with each adapter merged by peft.

    python make.py [FOLDER]

Run with peft and safetensors.
"""

import os
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

EVERYTHING = ["words", "conv", "query", "value"]
ADAPTERS = {
    "plain": {"target_modules": ["query", "value"]},
    "everything": {
        "target_modules": EVERYTHING,
        "modules_to_save": ["head"],
        "use_rslora": True,
    },
    "patterns": {
        "target_modules": EVERYTHING,
        "alpha_pattern": {"query": 5},
        "rank_pattern": {"value": 3},
    },
}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(5, 4)
        self.conv = torch.nn.Conv2d(2, 4, 3)
        self.query = torch.nn.Linear(4, 6)
        self.value = torch.nn.Linear(6, 4, bias=False)
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x):
        image = self.conv(torch.ones(1, 2, 3, 3)).sum()
        return self.head(self.value(self.query(self.words(x)))) + image


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    for name, options in ADAPTERS.items():
        torch.manual_seed(3)
        net = Net()
        path = os.path.join(folder, name)
        os.makedirs(path, exist_ok=True)
        save_file(net.state_dict(), os.path.join(folder, "base.safetensors"))
        model = get_peft_model(net, LoraConfig(r=2, lora_alpha=7, **options))
        for parameter in model.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter)
        model.save_pretrained(path)
        os.remove(os.path.join(path, "README.md"))
        merged = model.merge_and_unload().state_dict()
        tensors = {key: value.contiguous() for key, value in merged.items()}
        save_file(tensors, os.path.join(folder, f"{name}.merged.safetensors"))


if __name__ == "__main__":
    main()
