"""The private API that the rooms use, each part with its purpose and its reason.

- `tensorflow`: TensorFlow's.
- `keras`: Keras's.
- `omegaconf`: OmegaConf's.

Nothing here imports another room. A test of each module fails when its library changes what is
used. Optuna's internals are in `runner.sweeps.study`.
"""
