"""The garbage collector rests during imports, and leaves alone what they made."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from runner.system.imports import paused_collections, without_collections


@pytest.fixture(autouse=True)
def _thaw() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_inside_and_everything_is_exempt_afterwards() -> None:
    before = gc.get_freeze_count()
    with without_collections():
        assert not gc.isenabled()
        made: list[list[int]] = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(made)


def test_a_failing_import_leaves_the_collector_on() -> None:
    def fail() -> None:
        with without_collections():
            raise ImportError("no such library")

    with pytest.raises(ImportError, match="no such library"):
        fail()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with without_collections():
        pass
    assert not gc.isenabled()


def test_a_pause_exempts_nothing() -> None:
    before = gc.get_freeze_count()
    with paused_collections():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == before


def test_what_is_made_afterwards_is_collected_as_ever() -> None:
    script = """
import gc, weakref
from runner.system.imports import without_collections
class Cycle: pass
with without_collections(): pass
cycle = Cycle(); cycle.itself = cycle
gone = weakref.ref(cycle)
del cycle
gc.collect()
assert gone() is None
"""
    subprocess.run([sys.executable, "-c", script], check=True)
