"""The private API of `runner.internals.pickle` is what it says."""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

from runner.internals.pickle import PythonUnpickler


def test_every_opcode_is_a_function_of_the_table() -> None:
    """An opcode that a later Python adds is to be looked at before it is executed."""
    known = {opcode.code.encode("latin-1")[0] for opcode in pickletools.opcodes}
    assert set(PythonUnpickler.dispatch) == known
    assert pickle.HIGHEST_PROTOCOL == 5


def test_an_instance_looks_every_opcode_up_in_its_table() -> None:
    read: list[int] = []

    class Recorded(dict[int, Any]):
        def __getitem__(self, opcode: int) -> Any:
            read.append(opcode)
            return super().__getitem__(opcode)

    content = pickle.dumps([{"a": (1, 2.5)}], 4)
    unpickler = PythonUnpickler(io.BytesIO(content), encoding="latin-1")
    unpickler.dispatch = Recorded(unpickler.dispatch)
    assert unpickler.load() == [{"a": (1, 2.5)}]
    assert read == [
        opcode.code.encode("latin-1")[0] for opcode, _, _ in pickletools.genops(content)
    ]
    assert (unpickler.stack, unpickler.metastack) == ([], [])


def test_both_opcodes_of_old_instances_are_made_by_one_method() -> None:
    calls = []

    class Old(PythonUnpickler):
        def find_class(self, module: str, name: str) -> str:
            return f"{module}.{name}"

        def _instantiate(self, function: Any, arguments: Any) -> None:
            calls.append((function, list(arguments)))
            self.append(None)

    assert Old(io.BytesIO(b"(I1\nios\nsystem\n.")).load() is None
    assert Old(io.BytesIO(b"(cos\nsystem\nI1\no.")).load() is None
    assert calls == [("os.system", [1])] * 2
