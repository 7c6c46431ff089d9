"""Graphs, and runs of the tiny experiment, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    import tensorflow as tf

    from runner.internals.tensorflow import Step
    from tests.samples.counter import Counter
    from tests.support.command_line import Command
    from tests.support.runs import Runs

# The same examples every time, however slow the machine is; a failure is reported as it is shrunk.
settings.register_profile("runner", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("runner")

# Only the tests that use a fixture need TensorFlow, which is why it is imported in each.


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    """A fresh graph, the default one during the test."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def in_callers_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has cached sessions run all steps that may in the caller's thread, without a look."""
    from runner.session import cached_session

    def inline(prepare: Callable[[bool], Step], needs_pool: Callable[[], bool]) -> Step:
        return prepare(not needs_pool())

    monkeypatch.setattr(cached_session, "ShortStep", inline)


@pytest.fixture
def counter(graph: tf.Graph) -> Counter:
    """Returns a model that counts, in a fresh graph."""
    from tests.samples.counter import Counter

    return Counter()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    from tests.support.privileges import mounted

    with mounted(tmp_path / "small", "1m") as place:
        yield place


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Runs the command line in this process, in an empty directory."""
    from tests.support.command_line import in_process

    return in_process(tmp_path, monkeypatch, capfd)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """Runs in one folder."""
    from tests.support.runs import Runs

    return Runs(tmp_path / "runs")


@pytest.fixture
def cheap(tmp_path: Path) -> Runs:
    """Runs of a model of one weight, for tests of what does not depend on the model."""
    from tests.support.configs import LINEAR
    from tests.support.runs import Runs

    return Runs(tmp_path / "runs", **LINEAR)


@pytest.fixture
def plain(tmp_path: Path) -> Runs:
    """Runs of two dense layers, for tests of what variables and slots hold."""
    from tests.support.configs import PLAIN
    from tests.support.runs import Runs

    return Runs(tmp_path / "runs", **PLAIN)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run that nothing disturbed, made once: to be read and compared with."""
    from tests.support.runs import Runs

    runs = Runs(tmp_path_factory.mktemp("whole") / "runs")
    runs.run()
    return runs


@pytest.fixture
def finished(whole: Runs, tmp_path: Path) -> Runs:
    """A copy of the finished run, to be used."""
    return whole.copy(tmp_path / "runs")
