"""The private API of libraries that the rooms use, each part with its purpose and its reason.

- `tensorflow`, `keras`: that of TensorFlow and of Keras.

Nothing here knows the rest of the package; a test for each module notices what a library changes.
"""
