"""What one's own code records to its run arrives once, however often the run is resumed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import runner
from runner.config.masking import Mask, MaskConfig
from runner.config.schema import TrainConfig
from runner.errors import RunnerError, UserCodeError
from runner.tracking.current_run import CurrentRun
from runner.tracking.event_files import EventFiles
from runner.tracking.follower import Follower
from runner.tracking.tracking_directory import TrackingDirectory
from tests.support.configs import tiny
from tests.support.following import edit_identity, never
from tests.support.runs import Runs, disturbed

HERE = "tests.samples.logging_code"


def test_outside_of_a_run_it_is_an_error() -> None:
    with pytest.raises(RunnerError, match="outside of a run"):
        runner.current_run()


def shown(path: Path) -> Counter[tuple[str, str, int]]:
    """Returns how often each tag has a value of each kind at each step, in event files."""
    counts: Counter[tuple[str, str, int]] = Counter()
    for file in sorted(path.glob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                counts[value.tag, value.WhichOneof("value"), event.step] += 1
    return counts


def deliver(folder: Path, store: str) -> None:
    """Delivers what is in the journal to event files in a folder of that name."""
    directory = TrackingDirectory(folder)
    edit_identity(directory, stores=(store,))
    directory.delivery_lock(store)
    assert Follower(directory, store, lambda _: EventFiles(folder / store), wait=never).run()


def test_each_record_of_a_resumed_run_is_shown_once(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    settings: dict[str, Any] = {
        "run_dir": str(tmp_path),
        "data": {"_target_": f"{HERE}.Talkative"},
        "model": {"_target_": "tests.samples.keras_callbacks.net"},
        "loss": None,
        "metrics": {},
        "optimizer": {},
        "train": TrainConfig(epochs=3, checkpoint_every=4),
        "callbacks": {"images": {"_target_": f"{HERE}.LogImages"}},
        "hooks": {
            "steps": {"_target_": f"{HERE}.LogSteps"},
            **disturbed("FailOnce", step=7, marker=str(tmp_path / "marker")),
        },
    }
    with pytest.raises(UserCodeError, match="the hook failed"):
        runs.start(tiny(**settings))
    folder = runs.directory().path
    deliver(folder, "at once")
    runs.start(tiny(**settings))
    for store in ("at once", "at the end"):
        deliver(folder, store)
        counts = shown(folder / store)
        assert counts["data/about", "tensor", 0] == counts["data/classes", "simple_value", 0] == 1
        for step in (5, 10, 15):
            assert counts["samples/last", "image", step] == 1, step
            assert counts[f"curves/{step // 5 - 1}", "image", step] == 1, step
            assert counts["weights/first", "histo", step] == 1, step
        assert [counts["own/one", "simple_value", step] for step in range(1, 16)] == [1] * 15
    assert (folder / "logged/10/samples/last.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize("predictions", [[0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]]])
def test_a_confusion_matrix_is_an_image(predictions: Any) -> None:
    run = CurrentRun(Mask(MaskConfig(), {}))
    with run.active():
        run.log_confusion_matrix([0, 1, 0], predictions, classes=["cat", "dog"])
        assert (run._make_folder() / "0" / "confusion_matrix.png").read_bytes()[:4] == b"\x89PNG"
