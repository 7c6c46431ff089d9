"""Object-based checkpoints, as `tf.train.Checkpoint` writes them."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

# The only description of the object graph; no public module offers this message.
from tensorflow.core.protobuf import trackable_object_graph_pb2

from runner.checkpoints import files
from runner.checkpoints.bundle import GLOBAL_STEP, OBJECT_GRAPH, WHAT, BundleReader
from runner.checkpoints.reader import Block, Bundle, CheckpointReader, CheckpointSpec, unreadable
from runner.errors import CheckpointError, Problem

_ATTRIBUTES = "/.ATTRIBUTES/"
_VALUE = "VARIABLE_VALUE"
_SLOT = "/.OPTIMIZER_SLOT/"
_BOOKKEEPING = re.compile(r"(.*/)?(_CHECKPOINTABLE_OBJECT_GRAPH|OBJECT_CONFIG_JSON)")
_SAVE_COUNTER = f"save_counter{_ATTRIBUTES}{_VALUE}"
# Every variable that is given no name is called this.
_UNNAMED = re.compile(r"(.*/)?Variable(_\d+)?")
# `keras.Model.export` saves a copy of every variable under this attribute.
_KERAS_COPIES = "_all_variables/"


class ObjectBasedReader(BundleReader):
    """Reads the object-based checkpoint at `prefix`.

    A variable is known by its object path, e.g. `model/head/kernel`, and by the variable's own
    name as an alias, unless that name is TensorFlow's default or stands for several variables. A
    slot is called `<path of its variable>/<path of its optimizer>/<slot>`.
    """

    format = "TensorFlow object-based checkpoint"

    @functools.cached_property
    def keys(self) -> Mapping[str, str]:
        """Object path -> key in the index."""
        shown = [
            key for key in self.stored if not _BOOKKEEPING.fullmatch(key) and key != _SAVE_COUNTER
        ]
        paths = {key: object_path(key) for key in shown}
        count: dict[str, int] = defaultdict(int)
        for path in paths.values():
            count[path] += 1
        # Two paths that differ only in escaped characters keep their escapes.
        return {
            (path if count[path] == 1 else key.removesuffix(_ATTRIBUTES + _VALUE)): key
            for key, path in paths.items()
        }

    def aliases(self) -> dict[str, str]:
        """Returns variable name -> object path."""
        graph = trackable_object_graph_pb2.TrackableObjectGraph()
        try:
            graph.ParseFromString(self._tensor(OBJECT_GRAPH).item())
        except (DecodeError, ValueError, TypeError) as error:
            raise unreadable(self.prefix, WHAT, f"its object graph: {error}") from error
        paths = {key: path for path, key in self.keys.items()}
        named: dict[str, set[str]] = defaultdict(set)
        for node in graph.nodes:
            for attribute in node.attributes:
                path = paths.get(attribute.checkpoint_key)
                if path is not None and not path.startswith(_KERAS_COPIES):
                    named[attribute.full_name].add(path)
        return {
            name: found.pop()
            for name, found in sorted(named.items())
            if len(found) == 1 and name and name not in self.keys and not _UNNAMED.fullmatch(name)
        }

    def step_names(self) -> Sequence[str]:
        """See `BundleReader.step_names`; TensorFlow's guides call the attribute `step`.

        Without one it is how many steps the optimizer has made, of Keras 3 or of Keras 2.
        """
        return (GLOBAL_STEP, "step", "optimizer/_iterations", "optimizer/iter")


def object_path(key: str) -> str:
    """Returns the path of attributes that leads to a saved value, as a reader would write it."""
    path = key.removesuffix(_ATTRIBUTES + _VALUE).replace(_ATTRIBUTES, "/").replace(_SLOT, "/")
    return re.sub(r"\.(S|\.)", lambda match: "/" if match[1] == "S" else ".", path)


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
