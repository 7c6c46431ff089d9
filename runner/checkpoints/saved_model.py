"""SavedModel directories, whose variables are a bundle of their own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoints import files
from runner.checkpoints.bundle import OBJECT_GRAPH, BundleReader
from runner.checkpoints.object_based import ObjectBasedReader
from runner.checkpoints.reader import Block, Bundle, CheckpointReader, CheckpointSpec
from runner.errors import CheckpointError, Problem

VARIABLES = "variables/variables"


class SavedModelReader(CheckpointReader):
    """Reads the variables of the SavedModel in `directory`, saved by TensorFlow 1 or 2."""

    format = "SavedModel"

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def spec(self) -> CheckpointSpec:
        """See `CheckpointReader.spec`."""
        return dataclasses.replace(self._variables.spec(), path=self.directory, format=self.format)

    def read(self, names: Sequence[str]) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """See `CheckpointReader.read`."""
        return self._variables.read(names)

    def read_blocks(
        self, wanted: Sequence[tuple[str, Sequence[Block | None]]]
    ) -> Iterator[tuple[str, list[NDArray[Any]]]]:
        """See `CheckpointReader.read_blocks`."""
        return self._variables.read_blocks(wanted)

    def bundle(self) -> Bundle:
        """See `CheckpointReader.bundle`."""
        return self._variables.bundle()

    @functools.cached_property
    def _variables(self) -> BundleReader:
        prefix = f"{self.directory.rstrip('/')}/{VARIABLES}"
        if not files.exists(f"{prefix}.index"):
            raise CheckpointError(
                Problem(
                    f"the SavedModel {self.directory} holds no variables",
                    f"there is no {prefix}.index",
                    "name a SavedModel with variables; those of a frozen graph are constants",
                )
            )
        return open_bundle(prefix)


def open_bundle(prefix: str) -> BundleReader:
    """Returns the reader of a bundle saved by name or by object."""
    reader = BundleReader(prefix)
    return ObjectBasedReader(prefix) if OBJECT_GRAPH in reader.stored else reader
