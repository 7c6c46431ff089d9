"""Writes a model, and an adapter of peft for it.

    python make.py [FOLDER]

Run with peft and safetensors.
"""

import os
import sys

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file


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
    torch.manual_seed(3)
    net = Net()
    save_file(net.state_dict(), os.path.join(folder, "base.safetensors"))
    model = get_peft_model(net, LoraConfig(r=2, lora_alpha=7, target_modules=["query", "value"]))
    model.save_pretrained(os.path.join(folder, "plain"))
    os.remove(os.path.join(folder, "plain", "README.md"))


if __name__ == "__main__":
    main()
