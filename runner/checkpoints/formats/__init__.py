"""The readers, each of one format or a few alike; `recognition.Format` says which opens which.

- `bundle`: TensorFlow's V1 and V2 checkpoints, saved by name or by object, and SavedModels.
  `tables`: checks V1 checkpoints and the indices of bundles for damage that TensorFlow passes over.
- `keras_files`: `.keras`, `.h5` and other HDF5 files. `keras_names`: the names of the variables.
  `hdf5`: the datasets in such files.
- `array_files`: `.npy`, `.npz`, `.safetensors`.
- `torch_files`: files of `torch.save`. `torch_objects`: the tensors in them. `pickle_nodes`:
  pickles as data, without executing anything.
- `msgpack_files`: files of Flax. `orbax`: directories of Orbax.
- `word_vectors`: files of GloVe and word2vec.
- `shards`: several files and their index.
"""
