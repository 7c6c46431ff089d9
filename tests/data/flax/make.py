"""Writes parameters as Flax does, whole and in chunks, and their values as `.npz`.

    python make.py [FOLDER]

Run with Flax 0.12; the element type stands in the names of the values, as NumPy lacks bfloat16.
"""

import os
import sys

import flax.serialization
import jax.numpy as jnp
import numpy as np


def parameters():
    kernel = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 8
    return {
        "params": {
            "Dense_0": {"kernel": jnp.asarray(kernel), "bias": jnp.ones(4, jnp.bfloat16)},
            "Embed_0": {"embedding": np.arange(20, dtype=np.int32).reshape(5, 4)},
            **{f"layer_{number}": {"scale": np.float32(number)} for number in range(20)},
        },
        "batch_stats": {"BatchNorm_0": {"mean": np.zeros((0, 3)), "var": np.ones(300)}},
        "opt_state": {"0": {"count": jnp.asarray(7)}, "1": {}},
        "step": 12,
        "name": "a" * 40,
        "rates": (0.1, -3, 70000, None, True),
    }


def flat(prefix, node):
    if isinstance(node, dict):
        for key, value in node.items():
            yield from flat(f"{prefix}/{key}" if prefix else key, value)
    elif hasattr(node, "dtype"):
        array = np.asarray(node)
        plain = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
        yield f"{array.dtype.name}:{prefix}", plain


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    state = parameters()
    for name, size in (("whole", flax.serialization.MAX_CHUNK_SIZE), ("chunked", 64)):
        flax.serialization.MAX_CHUNK_SIZE = size
        with open(os.path.join(folder, f"{name}.msgpack"), "wb") as file:
            file.write(flax.serialization.to_bytes(state))
        np.savez_compressed(os.path.join(folder, f"{name}.npz"), **dict(flat("", state)))


if __name__ == "__main__":
    main()
