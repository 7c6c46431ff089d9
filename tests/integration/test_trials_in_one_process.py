"""Trials in one process share nothing that they must not, and leave nothing behind."""

from __future__ import annotations

import gc
import json
import threading
from pathlib import Path

import psutil
import pytest

from tests.support.configs import tiny
from tests.support.runs import directory, run

from .cases import tensors
from .conftest import Command


def _footprint() -> tuple[float, int, int]:
    """Returns the megabytes, threads and open files of this process."""
    gc.collect()
    process = psutil.Process()
    return process.memory_info().rss / 1e6, threading.active_count(), process.num_fds()


@pytest.mark.soak
def test_a_trial_gives_the_same_whatever_ran_before_it_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    first = [line for line in run(tmp_path / "first") if "validation" in line]
    other = {"_target_": "tests.samples.experiment.Net", "units": 7, "extra": True}
    run(tmp_path / "other", seed=5, model=other)
    with pytest.raises(Exception, match="the loss is nan"):
        run(tmp_path / "poisoned", data={**tiny().data, "poison_after": 3})
    growth = []
    for name in ("again", "and again"):
        memory, threads, files = _footprint()
        again = [line for line in run(tmp_path / name) if "validation" in line]
        more_memory, more_threads, more_files = _footprint()
        assert (more_threads, more_files) == (threads, files)
        assert first == again
        growth.append(more_memory - memory)
    # The allocator takes memory in pieces of 10 MB, which several trials then share.
    assert min(growth) < 5
    one, two = (tensors(directory(tmp_path / name).checkpoints) for name in ("first", "again"))
    assert "body/dense/kernel" in one
    assert one == two


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_sweep_of_a_hundred_trials_does_not_grow(command: Command) -> None:
    warm_up, count = 5, 100
    file = command.folder / "footprints"
    process = command.start(
        "-m",
        "+experiment=tiny",
        f"seed=range(0,{warm_up + count})",
        f"+hooks.footprint={{_target_: tests.samples.hooks.Footprint,file: '{file}'}}",
        "sweep.figures=false",
    )
    output, errors = process.communicate(timeout=1500)
    assert process.returncode == 0, errors
    assert "trial  seed" in output
    measured = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(measured) == warm_up + count
    memory, threads, files = measured[warm_up]
    more_memory, more_threads, more_files = measured[-1]
    assert more_memory - memory < 12, measured
    assert (more_threads, more_files) == (threads, files)
