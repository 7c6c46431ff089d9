"""Finds the tensors of a PyTorch pickle, and the mappings that hold them, among its nodes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from runner.checkpoints.formats.pickle_nodes import (
    MAX_OPCODES,
    Global,
    Node,
    PersistentId,
    PickledCall,
    PickleError,
)
from runner.checkpoints.reader import is_number
from runner.errors import CheckpointError, nearest

# Storage classes of `torch` -> NumPy's names of their element types.
_DTYPES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "UntypedStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    # The integers of quantized tensors, which are not read; their size says where others are.
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
    "QUInt4x2Storage": "uint8",
    "QUInt2x4Storage": "uint8",
}
# Where programs keep the model's values beside other things, first wins.
_STATE_DICTS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights")
_EXTRA = "_extra_state"
_ARRAY = re.compile(r"numpy\._?core\.(multiarray\.(_reconstruct|scalar)|numeric\._frombuffer)")
_MAX_RANK, _MAX_DEPTH, _MAX_TENSORS = 32, 64, 500_000
# Of one name, and of all names together.
_MAX_NAME, _MAX_NAMES = 4096, 128 << 20
# How many keys, and how many values of each, are searched for mappings to propose.
_MAX_SEARCHED = 100


@dataclass(frozen=True)
class StorageView:
    """A tensor, as a view of a storage.

    Attributes:
      key: the storage's.
      dtype: NumPy's name of the element type; for a tensor that cannot be read, what it is.
      shape: the dimensions.
      offset, strides: in elements of `dtype`.
      is_conjugate, is_negative: whether the values are conjugated or negated when they are read.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0
    strides: tuple[int, ...] = ()
    is_conjugate: bool = False
    is_negative: bool = False


@dataclass(frozen=True)
class StateDict:
    """The tensors of a mapping in a file.

    Attributes:
      mapping: where it is in the saved object, e.g. `state_dict`; empty for the object itself.
      tensors: name -> tensor, in the file's order.
      tied: further name of a tensor -> its name in `tensors`.
      step: the `global_step` beside it, as Lightning keeps it; None without one.
    """

    mapping: str
    tensors: Mapping[str, StorageView]
    tied: Mapping[str, str]
    step: int | None = None


def state_dict(root: Node, path: str, mapping: str = "") -> StateDict:
    """Returns the tensors of a mapping of a saved object.

    Nested mappings are joined by dots. A whole saved module counts as the mapping that its
    `state_dict()` would return.

    Args:
      root: the saved object.
      path: the file, for messages.
      mapping: its keys joined by dots; by default the first of `state_dict`, `model_state_dict`,
        `model`, ... that holds tensors, or else the whole object.

    Raises:
      CheckpointError: when the file holds no such mapping, or no tensors.
      PickleError: when a tensor or the nesting is not valid.
    """
    top = _items(root)
    step = top.get("global_step")
    if mapping:
        node = _part(root, mapping)
    else:
        names = (name for name in _STATE_DICTS if next(_tensors(top.get(name)), None))
        mapping = next(names, "")
        if any(_tensor(value) is not None for value in top.values()):
            mapping = ""
        node = top[mapping] if mapping else root
    tensors, tied = _distinct(_tensors(node))
    if not tensors:
        raise CheckpointError.of(
            f"{path} holds no tensors" + (f" in {mapping!r}" if mapping else ""),
            "it is a file of torch.save with other objects",
            "name a file with a state_dict, or a mapping in this file after `#`",
            tuple(f"{path}#{name}" for name in nearest(mapping, _mappings(top))),
        )
    return StateDict(mapping, tensors, tied, step if type(step) is int else None)


def _part(node: Node, mapping: str) -> Node:
    """Returns what is at keys joined by dots, which the keys may hold as well; None if nothing."""
    while mapping:
        items = {str(key): value for key, value in _items(node).items() if _is_name(key)}
        parts = mapping.split(".")
        heads = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        head = next((head for head in heads if head in items), mapping)
        node, mapping = items.get(head), mapping[len(head) + 1 :]
    return node


def _mappings(top: Mapping[Node, Node]) -> list[str]:
    """Returns the keys of mappings with tensors, among the first keys of a saved object."""
    return [
        str(key)
        for key, value in itertools.islice(top.items(), _MAX_SEARCHED)
        if _is_name(key)
        and any(
            _tensor(part) is not None
            for part in itertools.islice(_items(value).values(), _MAX_SEARCHED)
        )
    ]


def _is_name(key: Node) -> bool:
    return isinstance(key, (str, int))


def storage_dtype(reference: PersistentId) -> tuple[str, str]:
    """Returns the key and the element type of the storage that a reference stands for.

    Raises:
      PickleError: when it is not a storage of a known type.
    """
    value = reference.value
    if not (isinstance(value, tuple) and len(value) >= 5 and value[0] == "storage"):
        raise PickleError("it refers to an object that is not a storage")
    kind = value[1].name.rpartition(".")[2] if isinstance(value[1], Global) else ""
    if kind not in _DTYPES or not isinstance(value[2], str):
        raise PickleError(f"it has a storage of the unknown type {kind!r}")
    return value[2], _DTYPES[kind]


def _distinct(
    named: Iterator[tuple[str, StorageView]],
) -> tuple[dict[str, StorageView], dict[str, str]]:
    """Returns the tensors, and the further names of tensors that are tied."""
    tensors: dict[str, StorageView] = {}
    first: dict[StorageView, str] = {}
    tied: dict[str, str] = {}
    characters = 0
    for name, tensor in named:
        characters += len(name)
        if len(tensors) + len(tied) >= _MAX_TENSORS or characters > _MAX_NAMES:
            raise PickleError(f"it names more than {_MAX_TENSORS:,} tensors, or too long")
        if name in tensors or name in tied:
            raise PickleError(f"it names two tensors {name!r}")
        original = first.setdefault(tensor, name) if tensor.key else name
        if original == name:
            tensors[name] = tensor
        else:
            tied[name] = original
    return tensors, tied


def _items(node: Node) -> Mapping[Node, Node]:
    """Returns what a node holds by name or number: items of a dictionary or list, or a module."""
    if isinstance(node, dict):
        return node
    if isinstance(node, (list, tuple)):
        return dict(enumerate(node))
    if not isinstance(node, PickledCall):
        return {}
    if isinstance(node.state, dict) and "_parameters" in node.state and "_modules" in node.state:
        parts: dict[Node, Node] = {}
        skipped = node.state.get("_non_persistent_buffers_set", ())
        for kind in ("_parameters", "_buffers", "_modules"):
            parts.update(_items(node.state.get(kind)))
        names = skipped.elements if isinstance(skipped, PickledCall) else skipped or ()
        if len(names) > _MAX_SEARCHED:
            raise PickleError(f"a module has more than {_MAX_SEARCHED} buffers that are not saved")
        for name in names:
            parts.pop(name, None)
        return parts
    if node.name == "collections.OrderedDict" and node.arguments and not node.items:
        return _pairs(node.arguments[0])
    return node.items


def _pairs(node: Node) -> Mapping[Node, Node]:
    """Returns the items of an ordered dictionary as Python 2 pickles it: a list of pairs."""
    pairs = node if isinstance(node, (list, tuple)) else ()
    items = {}
    for pair in pairs:
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and _is_name(pair[0])):
            break
        items[pair[0]] = pair[1]
    if items and len(items) != len(pairs):  # Each pair counts when nodes are counted.
        raise PickleError("an ordered dictionary has a key twice, or keys of several types")
    return items


def _tensors(node: Node) -> Iterator[tuple[str, StorageView]]:
    """Yields the names and tensors in nested mappings and lists, in their order.

    Raises:
      PickleError: when they are nested too deeply, or hold too many nodes.
    """
    pending = [iter((("", node),))]
    visited = 0
    while pending:
        name, node = next(pending[-1], ("", None))
        if node is None:
            pending.pop()
            continue
        visited += 1
        if len(pending) > _MAX_DEPTH or visited > 2 * MAX_OPCODES:
            raise PickleError("its mappings are nested too deeply")
        tensor = _tensor(node) or _unread(name, node)
        if tensor is not None:
            yield name, tensor
        else:
            items = _items(node)
            visited += len(items)
            pending.append(_parts(name, items))


def _parts(prefix: str, items: Mapping[Node, Node]) -> Iterator[tuple[str, Node]]:
    """Yields the names and values of a mapping or list that may hold tensors, one at a time."""
    for key, value in items.items():
        if not _is_name(key) or value is None:
            continue
        name = f"{prefix}.{key}" if prefix else str(key)
        if _is_extra_state(name) or isinstance(value, (dict, list, tuple, PickledCall)):
            if len(name) > _MAX_NAME:
                raise PickleError(f"a name is longer than {_MAX_NAME:,} characters")
            yield name, value


def _unread(name: str, node: Node) -> StorageView | None:
    """Returns what stands for an array of NumPy, or a module's extra state; None for others."""
    if isinstance(node, PickledCall) and _ARRAY.fullmatch(node.name):
        return StorageView("", "array of NumPy", ())
    return StorageView("", "extra state of PyTorch", ()) if _is_extra_state(name) else None


def _is_extra_state(name: str) -> bool:
    return name.rpartition(".")[2] == _EXTRA


def _tensor(node: Node) -> StorageView | None:
    """Returns the tensor that a node stands for; None for anything else."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(node, PickledCall):
            return None
        name, arguments = node.name.rpartition(".")[2], node.arguments
        if not node.name.startswith("torch."):
            return None
        if name in ("_rebuild_parameter", "_rebuild_parameter_with_state", "Parameter"):
            node = arguments[0] if arguments else None
        elif name == "_rebuild_from_type_v2" and len(arguments) > 2:
            kind, has_state = arguments[1], len(arguments) > 3 and bool(arguments[3])
            # The attributes of another library's class may say what the values stand for.
            if has_state and isinstance(kind, Global) and not kind.name.startswith("torch."):
                return StorageView("", f"{kind.name.rpartition('.')[2]} of PyTorch", ())
            node = (
                PickledCall(arguments[0], arguments[2]) if isinstance(arguments[2], tuple) else None
            )
        elif name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"):
            return _view(name, arguments)
        elif name.startswith("_rebuild"):
            return StorageView("", f"{name.removeprefix('_rebuild_')} of PyTorch", ())
        else:
            return None
    raise PickleError("a tensor is nested too deeply")


def _view(function: str, arguments: tuple[Node, ...]) -> StorageView:
    if len(arguments) < 4 or not isinstance(arguments[0], PersistentId):
        raise PickleError(f"{function} has no storage")
    key, dtype = storage_dtype(arguments[0])
    shape, strides = _integers(arguments[2]), _integers(arguments[3])
    metadata_at = 6
    if function == "_rebuild_tensor_v3":
        metadata_at = 7
        kind = arguments[6] if len(arguments) > 6 else None
        name = kind.name.rpartition(".")[2] if isinstance(kind, Global) else ""
        dtype = name if is_number(name) else f"{name} of PyTorch"
    (offset,) = _integers((arguments[1],))
    if len(shape) != len(strides) or len(shape) > _MAX_RANK:
        raise PickleError(f"a tensor has {len(shape)} dimensions and {len(strides)} strides")
    view = arguments[0].value[5:6]
    if view and isinstance(view[0], tuple) and len(view[0]) == 3:  # Before PyTorch 0.4.
        offset += _integers(view[0][1:2])[0]
    tensor = StorageView(key, dtype, shape, offset, strides)
    metadata = arguments[metadata_at] if len(arguments) > metadata_at else None
    if isinstance(metadata, dict):
        if not (metadata.keys() <= {"conj", "neg"} and {*map(type, metadata.values())} <= {bool}):
            return replace(tensor, dtype="tensor with unknown settings of PyTorch")
        tensor = replace(
            tensor,
            is_conjugate=metadata.get("conj") is True,
            is_negative=metadata.get("neg") is True,
        )
    return tensor


def _integers(node: Node) -> tuple[int, ...]:
    """Returns a `torch.Size` or a tuple of integers that are sizes, offsets or strides."""
    values = node.arguments[0] if isinstance(node, PickledCall) and node.arguments else node
    if not isinstance(values, (tuple, list)) or not all(
        type(value) is int and 0 <= value < 1 << 63 for value in values
    ):
        raise PickleError("a tensor's shape, offset or strides are not integers of at least 0")
    return tuple(values)
