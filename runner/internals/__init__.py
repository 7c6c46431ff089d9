"""The private API that the rooms use, each part with its purpose and its reason.

- `tensorflow`: TensorFlow's.
- `keras`: Keras's.

Nothing here imports another room. For each module, a test fails when its library changes.
"""
