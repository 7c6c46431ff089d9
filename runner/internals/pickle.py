"""The unpickler of the standard library that is written in Python.

`pickle.Unpickler`, the same in C, gives no say in what an opcode does: it hashes keys that are
nested so deeply that C's stack overflows, allocates a table for any number in a memo, and has no
limit on the number of objects. In this one every opcode is a function of a table, `dispatch`.
"""

from __future__ import annotations

import pickle
from typing import Any

PythonUnpickler: Any = pickle._Unpickler
