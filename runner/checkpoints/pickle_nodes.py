"""Reads pickles as data: an interpreter of their opcodes that builds inert nodes.

Nothing is imported, called or executed. A class or function is a `Global`, which only has a name;
calling one makes a `PickledCall`, which only lists its arguments. What a node stands for is for the
reader of a file format to decide, see `torch_files`. `pickletools` decodes the opcodes and
executes nothing either.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any, TypeAlias

# Real files of the largest models stay below a tenth of these.
MAX_BYTES = 64 << 20
MAX_OPCODES = 3_000_000

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


@dataclass(eq=False, slots=True)
class PersistentId:
    """A reference to an object stored outside the pickle, e.g. a storage of PyTorch."""

    value: Node


@dataclass(eq=False, slots=True)
class _OpaqueKey:
    """A dictionary's key of another type than a string or number."""

    value: Node


def read_pickle(file: IO[bytes]) -> tuple[Node, list[PersistentId]]:
    """Reads one pickle of protocol 2 or later from a file's position, and nothing after it.

    Args:
      file: at most `MAX_BYTES` are read from it.

    Returns:
      The node of the pickled object, and all references to objects outside the pickle.

    Raises:
      PickleError: when the pickle is damaged or too large.
    """
    machine = _Machine()
    try:
        for count, (opcode, argument, position) in enumerate(pickletools.genops(file)):
            if count >= MAX_OPCODES or (position or 0) > MAX_BYTES:
                raise PickleError(
                    f"it has more than {MAX_OPCODES:,} opcodes or {MAX_BYTES:,} bytes"
                )
            machine.run(opcode.name, argument)
    except PickleError:
        raise
    # What pickletools and the stack raise on damaged bytes.
    except (ValueError, LookupError, TypeError, OverflowError, AttributeError) as error:
        raise PickleError(f"its pickle is damaged: {type(error).__name__}: {error}") from error
    return machine.result(), machine.persistent_ids


_PUSHES_ARGUMENT = frozenset(
    """
    INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING
    UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8
    """.split()  # noqa: SIM905 - names read better than a list of literals
)
_PUSHES_CONSTANT: dict[str, Callable[[], Node]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_SET": list,
    "EMPTY_DICT": dict,
}
_IGNORED = frozenset(("PROTO", "FRAME", "STOP"))


class _Machine:
    """The stack and memo of pickle's virtual machine, see `pickletools`."""

    def __init__(self) -> None:
        self.persistent_ids: list[PersistentId] = []
        self._stack: list[Node] = []
        self._marks: list[int] = []
        self._memo: dict[int, Node] = {}

    def run(self, opcode: str, argument: Any) -> None:
        if opcode in _PUSHES_ARGUMENT:
            self._stack.append(argument)
        elif opcode in _PUSHES_CONSTANT:
            self._stack.append(_PUSHES_CONSTANT[opcode]())
        elif opcode in ("BINPUT", "LONG_BINPUT", "PUT"):
            self._memo[argument] = self._stack[-1]
        elif opcode in ("BINGET", "LONG_BINGET", "GET"):
            self._stack.append(self._memo[argument])
        elif opcode not in _IGNORED:
            operation = getattr(self, f"_{opcode.lower()}", None)
            if operation is None:
                raise PickleError(f"it uses the opcode {opcode}, which no checkpoint needs")
            operation(argument) if opcode == "GLOBAL" else operation()

    def result(self) -> Node:
        if len(self._stack) != 1:
            raise PickleError(f"its pickle leaves {len(self._stack)} objects")
        return self._stack[0]

    def _take(self, count: int) -> list[Node]:
        """Takes `count` objects from the stack; they lie above the last mark."""
        start = len(self._stack) - count
        if start < (self._marks[-1] if self._marks else 0):
            raise PickleError("its pickle takes more objects than it made")
        popped = self._stack[start:]
        del self._stack[start:]
        return popped

    def _take_to_mark(self) -> list[Node]:
        start = self._marks.pop()
        popped = self._stack[start:]
        del self._stack[start:]
        return popped

    def _mark(self) -> None:
        self._marks.append(len(self._stack))

    def _pop(self) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._take(1)

    def _pop_mark(self) -> None:
        self._take_to_mark()

    def _memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def _tuple(self) -> None:
        self._stack.append(tuple(self._take_to_mark()))

    def _tuple1(self) -> None:
        self._stack.append(tuple(self._take(1)))

    def _tuple2(self) -> None:
        self._stack.append(tuple(self._take(2)))

    def _tuple3(self) -> None:
        self._stack.append(tuple(self._take(3)))

    def _list(self) -> None:
        self._stack.append(self._take_to_mark())

    _frozenset = _list

    def _append(self) -> None:
        self._extend(self._take(1))

    def _appends(self) -> None:
        self._extend(self._take_to_mark())

    _additems = _appends

    def _extend(self, elements: list[Node]) -> None:
        target = self._stack[-1]
        if isinstance(target, PickledCall):
            target.elements.extend(elements)
        elif isinstance(target, list):
            target.extend(elements)
        else:
            raise PickleError(f"its pickle appends to a {type(target).__name__}")

    def _dict(self) -> None:
        elements = self._take_to_mark()
        self._stack.append({})
        self._set_items(elements)

    def _setitem(self) -> None:
        self._set_items(self._take(2))

    def _setitems(self) -> None:
        self._set_items(self._take_to_mark())

    def _set_items(self, elements: list[Node]) -> None:
        target = self._stack[-1]
        items = target.items if isinstance(target, PickledCall) else target
        if not isinstance(items, dict):
            raise PickleError(f"its pickle sets an item of a {type(target).__name__}")
        for key, value in zip(elements[::2], elements[1::2], strict=True):
            # Hashing a deeply nested tuple would overflow C's stack.
            plain = key is None or isinstance(key, (str, int, float, bytes))
            items[key if plain else _OpaqueKey(key)] = value

    def _global(self, argument: str) -> None:
        self._stack.append(Global(argument.replace(" ", ".", 1)))

    def _stack_global(self) -> None:
        module, name = self._take(2)
        if not (isinstance(module, str) and isinstance(name, str)):
            raise PickleError("its pickle names a class by something other than strings")
        self._stack.append(Global(f"{module}.{name}"))

    def _reduce(self) -> None:
        function, arguments = self._take(2)
        self._call(function, arguments)

    _newobj = _reduce

    def _newobj_ex(self) -> None:
        function, arguments, _keywords = self._take(3)
        self._call(function, arguments)

    def _obj(self) -> None:
        function, *arguments = self._take_to_mark()
        self._call(function, tuple(arguments))

    def _call(self, function: Node, arguments: Node) -> None:
        if not isinstance(arguments, tuple):
            raise PickleError("its pickle calls something with arguments that are no tuple")
        self._stack.append(PickledCall(function, arguments))

    def _build(self) -> None:
        (state,) = self._take(1)
        target = self._stack[-1]
        if not isinstance(target, PickledCall):
            raise PickleError(f"its pickle sets the state of a {type(target).__name__}")
        target.state = state

    def _binpersid(self) -> None:
        (value,) = self._take(1)
        self.persistent_ids.append(PersistentId(value))
        self._stack.append(self.persistent_ids[-1])
