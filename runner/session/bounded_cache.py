"""A bounded cache that cannot be made to build the same things over and over."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class Used(Protocol):
    """What a cache keeps; the user sets `used` to `BoundedCache.now()` at every use."""

    used: int


Entry = TypeVar("Entry", bound=Used)


class BoundedCache(Generic[Entry]):
    """Keeps `capacity` entries, which are costly to build and cheap to do without.

    While there is room, an entry is built when it is first asked for. After that only what has
    been asked for `patience` times, in the place of the least recently used: a program that goes
    around more than fit would otherwise build at every step.
    """

    def __init__(self, capacity: int, patience: int) -> None:
        """Stores its arguments; `capacity` of candidates are counted besides."""
        self._capacity, self._patience = capacity, patience
        self._entries: dict[Hashable, Entry] = {}
        self._candidates: OrderedDict[Hashable, int] = OrderedDict()
        self._lock = threading.Lock()
        self._clock = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Entry | None:
        """Returns the entry, if it is there."""
        return self._entries.get(key)

    def now(self) -> int:
        """Returns a number that grows; two threads may get the same."""
        self._clock += 1
        return self._clock

    def admit(self, key: Hashable, build: Callable[[], Entry]) -> Entry | None:
        """Returns the entry, built if need be, or None when it is not worth it yet.

        What `build` raises passes through. Only one thread builds at a time.
        """
        with self._lock:
            if key in self._entries:
                return self._entries[key]
            if len(self._entries) >= self._capacity and not self._wanted(key):
                return None
            entry = build()
            if len(self._entries) >= self._capacity:
                del self._entries[min(self._entries, key=self._age)]
            entry.used = self.now()
            self._entries[key] = entry
            return entry

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._entries.clear()
            self._candidates.clear()

    def _age(self, key: Hashable) -> int:
        return self._entries[key].used

    def _wanted(self, key: Hashable) -> bool:
        count = self._candidates.pop(key, 0) + 1
        if count >= self._patience:
            return True
        self._candidates[key] = count
        if len(self._candidates) > self._capacity:
            self._candidates.popitem(last=False)
        return False
