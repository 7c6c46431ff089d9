"""Writes a network of Flax, and what its modules compute by the lines of docs/how-to/prove.md.

    python make.py

Run with Flax 0.12.
"""

import re
import runpy
import tempfile
from pathlib import Path

import flax.linen as nn
import flax.serialization
import jax
import numpy as np

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[2] / "docs" / "how-to" / "prove.md"


class Block(nn.Module):
    """Attention and two dense layers; the first one that is made is the last one called."""

    @nn.compact
    def __call__(self, x):
        hidden = nn.LayerNorm(epsilon=1e-5)(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(hidden, hidden)
        last, hidden = nn.Dense(8), nn.LayerNorm(epsilon=1e-5)(x)
        return x + last(nn.gelu(nn.Dense(16)(hidden), approximate=False))


class Network(nn.Module):
    """Convolutions with batch normalization, and two blocks."""

    @nn.compact
    def __call__(self, images):
        x = nn.Conv(8, (3, 3), padding="VALID")(images)
        x = nn.relu(nn.BatchNorm(use_running_average=True, epsilon=1e-5)(x))
        x = nn.Conv(8, (3, 3), use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=True, epsilon=1e-5)(x)
        x = x.reshape(x.shape[0], -1, 8)
        for _ in range(2):
            x = Block()(x)
        return nn.Dense(3)(x.mean(1))


def main():
    model, random = Network(), np.random.default_rng(0)
    images = random.normal(size=(2, 6, 6, 3)).astype(np.float32)

    def varied(value):
        value = np.asarray(value)
        return value if np.ptp(value) else random.uniform(0.5, 1.5, value.shape).astype(np.float32)

    variables = jax.tree.map(varied, model.init(jax.random.key(0), images))
    (HERE / "network.msgpack").write_bytes(flax.serialization.to_bytes(variables))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = next(block for block in blocks if "capture_intermediates" in block)
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(lines.replace("reference.npz", str(HERE / "reference.npz")))
        file.flush()
        runpy.run_path(file.name, {"model": model, "variables": variables, "images": images})


if __name__ == "__main__":
    main()
