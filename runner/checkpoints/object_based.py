"""Object-based checkpoints, as `tf.train.Checkpoint` writes them."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from google.protobuf.message import DecodeError

# The only description of the object graph; no public module offers this message.
from tensorflow.core.protobuf import trackable_object_graph_pb2

from runner.checkpoints.bundle import GLOBAL_STEP, OBJECT_GRAPH, WHAT, BundleReader
from runner.checkpoints.reader import unreadable

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
