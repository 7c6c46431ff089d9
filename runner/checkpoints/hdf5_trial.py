"""What `hdf5_probe` runs in a process of its own: all that the readers do with an HDF5 file."""

from __future__ import annotations

import resource
import sys

import h5py

from runner.checkpoints import hdf5, keras_files
from runner.errors import CheckpointError


def examine(path: str) -> None:
    """Does what the readers do with a file, short of reading what is neither packed nor chunked.

    Raises:
      CheckpointError: as the readers do.
      Exception: any of `hdf5.READ_ERRORS`.
    """
    with h5py.File(path, "r") as file:
        if keras_files.is_listed(file):
            found = keras_files.weights(file)
        else:
            keras_files.contents(file)
            found = hdf5.datasets(file)
        hdf5.root_name(file.attrs.get("model_config"))
        for name, dataset in found.items():
            hdf5.tensor_spec(name, dataset)
            dataset.id.get_storage_size()
            if dataset.chunks is not None or dataset.size == 1:
                hdf5.value(path, dataset)


def main(path: str, cpu_seconds: int) -> None:
    """Examines a file with a limit on the CPU time; an error is left to the caller to meet."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    # A crash is expected here and must not leave a core file in the user's folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        examine(path)
    except (*hdf5.READ_ERRORS, CheckpointError):
        # The caller meets the same error, and explains it.
        return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
