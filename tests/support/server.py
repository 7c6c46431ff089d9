"""A TensorFlow server of one task, until it is killed: `python -m tests.support.server ADDRESS`."""

from __future__ import annotations

import sys

import tensorflow.compat.v1 as tf

if __name__ == "__main__":
    server = tf.train.Server({"worker": [sys.argv[1]]}, "worker", 0)
    print("serves", flush=True)
    server.join()
