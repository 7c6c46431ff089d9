"""What a BoundedCache keeps, and when it builds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from runner.session.bounded_cache import BoundedCache


@dataclass
class Entry:
    name: str
    used: int = 0


class Builds(list[str]):
    def entry(self, name: str) -> Entry:
        self.append(name)
        return Entry(name)


def ask(cache: BoundedCache[Entry], builds: Builds, name: str) -> Entry | None:
    entry = cache.get(name) or cache.admit(name, lambda: builds.entry(name))
    if entry is not None:
        entry.used = cache.now()
    return entry


def test_builds_once_while_there_is_room() -> None:
    cache, builds = BoundedCache[Entry](2, patience=3), Builds()
    first = ask(cache, builds, "a")
    assert ask(cache, builds, "a") is first
    assert cache.admit("a", lambda: builds.entry("a")) is first
    assert cache.get("b") is None
    ask(cache, builds, "b")
    assert builds == ["a", "b"]
    assert len(cache) == 2


def test_a_full_cache_takes_only_what_is_asked_for_often_in_place_of_the_least_used() -> None:
    cache, builds = BoundedCache[Entry](2, patience=3), Builds()
    for name in ("a", "b", "a"):
        ask(cache, builds, name)
    assert ask(cache, builds, "c") is None
    assert ask(cache, builds, "c") is None
    assert ask(cache, builds, "c") is not None
    assert cache.get("b") is None
    assert cache.get("a") is not None
    assert builds == ["a", "b", "c"]


def test_going_around_more_than_fit_does_not_build_at_every_step() -> None:
    cache, builds = BoundedCache[Entry](4, patience=100), Builds()
    for _ in range(50):
        for name in "abcdefghijklmnop":
            ask(cache, builds, name)
    assert builds == ["a", "b", "c", "d"]
    assert len(cache._candidates) <= 4


def test_unbounded_many_are_neither_kept_nor_counted() -> None:
    cache, builds = BoundedCache[Entry](4, patience=2), Builds()
    for number in range(1000):
        ask(cache, builds, str(number))
    assert len(cache) == 4
    assert len(cache._candidates) == 4


def test_an_error_while_building_leaves_nothing() -> None:
    cache = BoundedCache[Entry](2, patience=1)

    def fail() -> Entry:
        raise ValueError("cannot")

    with pytest.raises(ValueError, match="cannot"):
        cache.admit("a", fail)
    assert cache.get("a") is None
    assert cache.admit("a", lambda: Entry("a")) is not None


def test_clear() -> None:
    cache, builds = BoundedCache[Entry](1, patience=2), Builds()
    ask(cache, builds, "a")
    ask(cache, builds, "b")
    cache.clear()
    assert len(cache) == 0
    assert ask(cache, builds, "b") is not None
