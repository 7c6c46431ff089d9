"""Lets one's own code record to the run that is being trained: `runner.current_run()`."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from runner.config.masking import Mask
from runner.errors import TrackingError
from runner.tracking.journal import HISTOGRAM
from runner.tracking.run_store import Tracker

logger = logging.getLogger(__name__)

_BINS = 30

# The innermost is the current one: a run may train its sources first.
_active: list[CurrentRun] = []


def current_run() -> CurrentRun:
    """Returns the run of which this is called, from data, model, callbacks or hooks.

    Raises:
      TrackingError: when the code runs outside of a run.
    """
    if not _active:
        raise TrackingError.of(
            "runner.current_run() is called outside of a run",
            "no run is being trained in this process",
            "call it from the data, model, callbacks or hooks of an experiment",
        )
    return _active[-1]


class CurrentRun:
    """Records to a run, each time once, however often the run is killed and resumed.

    Files are copied to `logged` in the run directory and delivered as artifacts, under the name
    `file`; images, texts and histograms are in TensorBoard too. `step` is the global step, by
    default the last one that is done. What is recorded while data and model are built waits for the
    first step; a run that resumes does not record it again. In another mode than `train` nothing is
    recorded.

    Args:
      mask: masks secrets in texts.
    """

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._tracker: Tracker | None = None
        self._step = 0
        self._waiting: list[Callable[[], None]] = []
        self._staged: tempfile.TemporaryDirectory[str] | None = None
        self._is_new = self._has_begun = False

    def log_metric(self, name: str, value: float, step: int | None = None) -> None:
        """Records a value of a metric."""
        self.log_metrics({name: value}, step)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Records values of metrics, by name."""
        values = {name: float(value) for name, value in metrics.items()}
        self._record(lambda tracker, now: tracker.log_metrics(values, now), step)

    def log_text(self, text: str, file: str, step: int | None = None) -> None:
        """Records a string, as a file such as `samples.txt` or `report.md`."""
        content = self._mask.text(text)
        self._log_file(file, step, lambda path: path.write_text(content))

    def log_figure(self, figure: Any, file: str, step: int | None = None) -> None:
        """Records a `matplotlib.figure.Figure`, as a file such as `curves.png`."""
        self._log_file(file, step, figure.savefig)

    def log_confusion_matrix(
        self,
        labels: Any,
        predictions: Any,
        file: str = "confusion_matrix.png",
        step: int | None = None,
        *,
        classes: Sequence[str] | None = None,
    ) -> None:
        """Records how often each class was predicted as each, as an image.

        Args:
          labels: the class of each example.
          predictions: the predicted class of each example, or scores, [examples, classes].
          file: its name.
          step: the global step.
          classes: the names of classes 0, 1, ...; by default their numbers.
        """
        # Importing them takes a part of a second.
        from matplotlib.figure import Figure
        from sklearn.metrics import ConfusionMatrixDisplay

        truth, predicted = np.asarray(labels).ravel(), np.asarray(predictions)
        predicted = predicted.argmax(axis=-1) if predicted.ndim > 1 else predicted
        count = len(classes) if classes else int(max(truth.max(), predicted.max())) + 1
        side = max(4.0, 0.5 * count)
        figure = Figure(figsize=(side + 1, side), layout="constrained")
        ConfusionMatrixDisplay.from_predictions(
            truth,
            predicted,
            labels=range(count),
            display_labels=classes,
            cmap="Blues",
            ax=figure.add_subplot(),
            xticks_rotation="vertical" if classes else "horizontal",
        )
        self.log_figure(figure, file, step)

    def log_image(self, image: Any, file: str, step: int | None = None) -> None:
        """Records an image as a PNG file.

        Args:
          image: [height, width] or [height, width, channels] of 1, 3 or 4 channels; uint8, or
            floats from 0 to 1.
          file: its name, such as `samples/first.png`.
          step: the global step.
        """
        pixels = np.asarray(image)
        if pixels.ndim == 3 and pixels.shape[2] == 1:
            pixels = pixels[..., 0]
        if pixels.ndim not in (2, 3):
            raise ValueError(f"an image has two or three axes, and this one {pixels.ndim}")
        if pixels.dtype != np.uint8:
            pixels = np.round(np.clip(pixels, 0.0, 1.0) * 255).astype(np.uint8)
        from matplotlib.image import imsave  # Importing it takes a part of a second.

        grey: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 255}
        grey = grey if pixels.ndim == 2 else {}
        self._log_file(file, step, lambda path: imsave(path, pixels, format="png", **grey))

    def log_histogram(self, values: Any, name: str, step: int | None = None) -> None:
        """Records how values are distributed; in MLflow as the artifact `NAME.histogram.json`."""
        numbers = np.asarray(values, np.float64).ravel()
        numbers = numbers[np.isfinite(numbers)]
        if not numbers.size:
            raise ValueError(f"the histogram {name} has no finite value")
        counts, limits = np.histogram(numbers, _BINS)
        content = {
            "min": numbers.min(),
            "max": numbers.max(),
            "num": numbers.size,
            "sum": numbers.sum(),
            "sum_squares": np.square(numbers).sum(),
            "bucket_limit": limits[1:].tolist(),
            "bucket": counts.tolist(),
        }
        document = json.dumps(content)
        self._log_file(f"{name}{HISTOGRAM}", step, lambda path: path.write_text(document))

    def log_artifact(self, path: Path | str, folder: str = "", step: int | None = None) -> None:
        """Records a copy of a file or a directory, in a folder of the artifacts."""
        source = Path(path)
        if not source.exists():
            raise FileNotFoundError(f"{source} does not exist")

        def copy(target: Path) -> None:
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
            else:
                shutil.copyfile(source, target)

        self._log_file(str(PurePosixPath(folder, source.name)), step, copy)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes this the current run within the block."""
        _active.append(self)
        try:
            yield
        finally:
            _active.remove(self)
            self.detach()
            if self._staged is not None:
                self._staged.cleanup()

    def _make_folder(self) -> Path:
        """Returns the folder of files to record: in the run directory once the run has begun."""
        if self._has_begun:
            return self._directory / "logged"
        if self._staged is None:
            self._staged = tempfile.TemporaryDirectory(prefix="runner-")
        return Path(self._staged.name)

    def attach(self, tracker: Tracker, directory: Path, *, is_new: bool) -> None:
        """Gives the tracker and the directory of the run, and whether it starts from scratch."""
        self._tracker, self._directory, self._is_new = tracker, directory, is_new

    def reach(self, step: int) -> None:
        """Takes the last step that is done; the first time, records what has waited."""
        self._step = step
        waiting, self._waiting = self._waiting, []
        if self._tracker is not None and not self._has_begun:
            self._has_begun = True
            if self._is_new:
                if self._staged is not None:
                    shutil.copytree(self._staged.name, self._make_folder(), dirs_exist_ok=True)
                for record in waiting:
                    record()

    def detach(self) -> None:
        """Records nothing any more: the run has ended."""
        self._tracker = None

    def _record(self, record: Callable[[Tracker, int], None], step: int | None) -> None:
        at = self._step if step is None else step

        def call() -> None:
            if self._tracker is not None:
                record(self._tracker, at)

        if self._has_begun:
            call()
        else:
            self._waiting.append(call)

    def _log_file(self, file: str, step: int | None, write: Callable[[Path], object]) -> None:
        name = PurePosixPath(file)
        if name.is_absolute() or ".." in name.parts or not name.name:
            raise ValueError(f"{file!r} is not the name of an artifact")
        at = self._step if step is None else step
        inside = Path(str(at), *name.parts)
        path = self._make_folder() / inside
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
        except OSError as error:  # What is recorded never fails the training.
            logger.warning("%s is not recorded: %s", file, error)
            return
        folder = "" if str(name.parent) == "." else str(name.parent)
        self._record(
            lambda tracker, now: tracker.log_artifact(self._make_folder() / inside, folder, now), at
        )
