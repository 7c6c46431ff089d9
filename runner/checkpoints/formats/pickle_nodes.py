"""Reads pickles as data, by an unpickler that makes inert nodes of all that is no plain value.

Nothing is imported, called or executed. A class or function is a `Global`, which only has a name;
calling one makes a `PickledCall`, which only lists its arguments. What a node stands for is for the
reader of a file format to decide, see `torch_files`.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any, TypeAlias

from runner.internals.pickle import PythonUnpickler

# Real files of the largest models stay below a tenth of these.
MAX_BYTES = 64 << 20
MAX_OPCODES = 3_000_000
_MAX_NAME = 4096

# None, numbers, strings, bytes, and lists, tuples and dicts of nodes, besides the classes below.
Node: TypeAlias = Any


class PickleError(ValueError):
    """A pickle is damaged, too large, or uses what no checkpoint needs."""


@dataclass(frozen=True, slots=True)
class Global:
    """A class or function by its full name, e.g. `torch._utils._rebuild_tensor_v2`."""

    name: str


@dataclass(eq=False, slots=True)
class PickledCall:
    """A call of a class or function that was recorded and not made.

    Attributes:
      function: the callee; a `Global` in any honest file.
      arguments: the positional arguments.
      state: the argument of `__setstate__`, or what `__dict__` is updated with; None without.
      items: what the object holds as a dictionary.
      elements: what the object holds as a list or set.
    """

    function: Node
    arguments: tuple[Node, ...]
    state: Node = None
    items: dict[Node, Node] = field(default_factory=dict)
    elements: list[Node] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The callee's full name; empty if it is not a `Global`."""
        return self.function.name if isinstance(self.function, Global) else ""

    def append(self, element: Node) -> None:
        """Adds an element, as the unpickler does to a list."""
        self.elements.append(element)


@dataclass(frozen=True, eq=False, slots=True)
class PersistentId:
    """A reference to an object stored outside the pickle, e.g. a storage of PyTorch."""

    value: Node


@dataclass(eq=False, slots=True)
class _OpaqueKey:
    """A dictionary's key of another type than a string or number."""

    value: Node


def read_pickle(file: IO[bytes]) -> tuple[Node, list[PersistentId]]:
    """Reads one pickle from a file's position, and nothing after it.

    Args:
      file: holds at most `MAX_BYTES`.

    Returns:
      The node of the pickled object, and all references to objects outside the pickle.

    Raises:
      PickleError: when the pickle is damaged or too large.
    """
    unpickler = _NodeUnpickler(file)
    try:
        root = unpickler.load()
    except PickleError:
        raise
    except (
        *(ValueError, LookupError, TypeError, OverflowError, AttributeError, EOFError),
        *(pickle.UnpicklingError, struct.error),
    ) as error:
        raise PickleError(f"its pickle is damaged: {error!r}") from error
    if unpickler.stack or unpickler.metastack:
        raise PickleError("its pickle leaves several objects")
    return root, unpickler.persistent_ids


class _Bounded(dict[int, Any]):
    """A table of opcodes in which only so many are looked up."""

    count = 0

    def __getitem__(self, opcode: int) -> Any:
        self.count += 1
        if self.count > MAX_OPCODES:
            raise PickleError(f"it has more than {MAX_OPCODES:,} opcodes")
        return super().__getitem__(opcode)


class _NodeUnpickler(PythonUnpickler):
    """Replaces what calls, looks up or hashes an object; all else the standard library does."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="latin-1")  # Strings of Python 2 are bytes.
        self.persistent_ids: list[PersistentId] = []
        self.dispatch = _Bounded({**_STANDARD, **_OPERATIONS})

    def find_class(self, module: str, name: str) -> Global:
        """Names a class or function."""
        if len(module) + len(name) > _MAX_NAME:
            raise PickleError("it names a class by a string that is too long")
        return Global(f"{module}.{name}")

    def persistent_load(self, pid: Node) -> PersistentId:
        """Records a reference to an object outside the pickle."""
        self.persistent_ids.append(PersistentId(pid))
        return self.persistent_ids[-1]

    def _instantiate(self, function: Node, arguments: Sequence[Node]) -> None:
        self.append(PickledCall(function, tuple(arguments)))

    def call(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(arguments, tuple):
            raise PickleError("its pickle calls something with arguments that are no tuple")
        self.append(PickledCall(function, arguments))

    def call_with_keywords(self) -> None:
        self.stack.pop()
        self.call()

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, PickledCall):
            raise PickleError(f"its pickle sets the state of a {type(target).__name__}")
        target.state = state

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _set(self.stack[-1], [key, value])

    def set_items(self) -> None:
        items = self.pop_mark()
        _set(self.stack[-1], items)

    def make_dictionary(self) -> None:
        items = self.pop_mark()
        self.append({})
        _set(self.stack[-1], items)

    def refuse(self) -> None:
        raise PickleError("it uses an extension or a buffer, which no checkpoint needs")


_STANDARD = PythonUnpickler.dispatch
_OPERATIONS = {
    pickle.REDUCE[0]: _NodeUnpickler.call,
    pickle.NEWOBJ[0]: _NodeUnpickler.call,
    pickle.NEWOBJ_EX[0]: _NodeUnpickler.call_with_keywords,
    pickle.BUILD[0]: _NodeUnpickler.build,
    # Hashing a deeply nested tuple, as a key or in a set, would overflow C's stack.
    pickle.SETITEM[0]: _NodeUnpickler.set_item,
    pickle.SETITEMS[0]: _NodeUnpickler.set_items,
    pickle.DICT[0]: _NodeUnpickler.make_dictionary,
    pickle.EMPTY_SET[0]: _STANDARD[pickle.EMPTY_LIST[0]],
    pickle.ADDITEMS[0]: _STANDARD[pickle.APPENDS[0]],
    pickle.FROZENSET[0]: _STANDARD[pickle.LIST[0]],
    # Room for a byte array is made before there are bytes.
    pickle.BYTEARRAY8[0]: _STANDARD[pickle.BINBYTES8[0]],
    **dict.fromkeys(
        (
            *(pickle.EXT1[0], pickle.EXT2[0], pickle.EXT4[0], pickle.PERSID[0]),
            *(pickle.NEXT_BUFFER[0], pickle.READONLY_BUFFER[0]),
        ),
        _NodeUnpickler.refuse,
    ),
}


def _set(target: Node, items: Sequence[Node]) -> None:
    """Sets the items of a dictionary from its keys and values in turns."""
    stored = target.items if isinstance(target, PickledCall) else target
    if not isinstance(stored, dict):
        raise PickleError(f"its pickle sets an item of a {type(target).__name__}")
    for key, value in zip(items[::2], items[1::2], strict=True):
        plain = key is None or isinstance(key, (str, int, float, bytes))
        stored[key if plain else _OpaqueKey(key)] = value
