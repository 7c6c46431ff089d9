"""Writes checkpoints as Orbax does.

    python make.py [FOLDER]

Run with Orbax 0.12: a directory of steps, and a tree with a folder for each array, as versions
before 0.5 wrote it.
"""

import os
import sys

import jax.numpy as jnp
import orbax.checkpoint as ocp


def main():
    folder = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(__file__))
    dense = {"kernel": jnp.arange(24.0).reshape(4, 6), "bias": jnp.full(6, 1.5, jnp.bfloat16)}
    for step in (10, 20):
        manager = ocp.CheckpointManager(os.path.join(folder, "manager"))
        tree = {"params": {"Dense_0": dense}, "step": jnp.asarray(step), "names": {}}
        manager.save(step, args=ocp.args.StandardSave(tree))
        manager.wait_until_finished()
    old = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False))
    old.save(os.path.join(folder, "folders"), tree)


if __name__ == "__main__":
    main()
