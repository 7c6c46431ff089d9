"""TensorBoard's event files as a store of runs."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.system.imports import without_import_notes
from runner.system.status import Status
from runner.tracking.destination import Destination
from runner.tracking.encoding import Delivery, Entry, MetricPoint
from runner.tracking.journal import HISTOGRAM, Artifact, Metrics, Record


class EventFiles(Destination):
    """The metrics, images, texts and histograms of one run as event files.

    TensorBoard has no place for other records.

    A point that is delivered twice is in the file twice, with the same step and time, and
    TensorBoard draws it once.
    """

    def __init__(self, directory: Path) -> None:
        with without_import_notes():
            import tensorflow as tf
        self.name = str(directory)
        self._directory, self._v1 = directory, tf.compat.v1

    @cached_property
    def _writer(self) -> Any:
        # Names have seconds: another writer of the same second would overwrite the file.
        suffix = f".{uuid.uuid4().hex}"
        with self._v1.Graph().as_default():  # The writer refuses to work eagerly.
            return self._v1.summary.FileWriter(str(self._directory), filename_suffix=suffix)

    def deliveries(self, records: Iterable[Record]) -> Iterable[Delivery]:
        """Yields all at once."""
        entries: list[Entry] = []
        for record in records:
            if isinstance(record, Metrics):
                for name, value in record.values.items():
                    entries.append(MetricPoint(name, value, record.time, record.step))
            elif isinstance(record, Artifact) and record.step is not None:
                entries.append(record)
        if entries:
            yield tuple(entries)

    def deliver(self, delivery: Delivery, failures: int = 0) -> None:
        """Writes to the file."""
        for entry in delivery:
            if isinstance(entry, MetricPoint):
                value = self._v1.Summary.Value(tag=entry.key, simple_value=entry.value)
            elif isinstance(entry, Artifact) and entry.path.is_file():
                value = self._shown(entry)
            else:
                continue
            if value is not None:
                summary, time = self._v1.Summary(value=[value]), (entry.time or 0) / 1000
                event = self._v1.Event(wall_time=time, step=entry.step, summary=summary)
                self._writer.add_event(event)
        self._writer.flush()

    def _shown(self, artifact: Artifact) -> Any:
        """Returns an artifact as TensorBoard shows it; None for what it cannot show."""
        name, suffix = artifact.path.name, artifact.path.suffix
        stem = name.removesuffix(HISTOGRAM) if name.endswith(HISTOGRAM) else artifact.path.stem
        shown: dict[str, Any] = {"tag": f"{artifact.folder}/{stem}".lstrip("/")}
        if name.endswith(HISTOGRAM):
            shown["histo"] = self._v1.HistogramProto(**json.loads(artifact.path.read_text()))
        elif suffix == ".png":
            content = artifact.path.read_bytes()
            width, height = struct.unpack(">II", content[16:24])
            shown["image"] = self._v1.Summary.Image(
                encoded_image_string=content, width=width, height=height, colorspace=3
            )
        elif suffix in (".txt", ".md"):
            plugin = self._v1.SummaryMetadata.PluginData(plugin_name="text")
            shown["metadata"] = self._v1.SummaryMetadata(plugin_data=plugin)
            shown["tensor"] = self._v1.make_tensor_proto(artifact.path.read_text())
        else:
            return None
        return self._v1.Summary.Value(**shown)

    def finish(self, status: Status, missing: str, end_time: int | None = None) -> None:
        """Does nothing, because event files hold no status."""
