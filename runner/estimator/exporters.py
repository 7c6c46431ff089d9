"""Exports of a model after evaluations: `tf.estimator.LatestExporter` and related classes."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Exporter(ABC):
    """`tf.estimator.Exporter`: exports a model after an evaluation, or not.

    Attributes:
      name: the name of the directory that exports are written to.
    """

    name: str

    @abstractmethod
    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> Any:
        """Returns the path of the export, or None if nothing is exported.

        Args:
          estimator: the model's `Estimator`.
          export_path: the directory below which it is written.
          checkpoint_path: the checkpoint that was evaluated.
          eval_result: metric name -> value.
          is_the_final_export: whether training is over.
        """


class LatestExporter(Exporter):
    """`tf.estimator.LatestExporter`: exports after every evaluation, and keeps the newest.

    Args:
      name: the name of the exports' directory.
      serving_input_receiver_fn: as `Estimator.export_saved_model` takes it.
      assets_extra: as `Estimator.export_saved_model` takes it.
      as_text: as `Estimator.export_saved_model` takes it.
      exports_to_keep: the number of exports to keep, by default 5; None keeps all.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        self.name, self._receiver = name, serving_input_receiver_fn
        self._assets, self._text, self._keep = assets_extra, as_text, exports_to_keep

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> Any:
        """Exports if an export is due, and deletes exports beyond `exports_to_keep`."""
        if not self._is_due(eval_result, is_the_final_export):
            return None
        path = estimator.export_saved_model(
            export_path,
            self._receiver,
            assets_extra=self._assets,
            as_text=self._text,
            checkpoint_path=checkpoint_path,
        )
        # Exports are named by the seconds since 1970, in ten digits.
        numbered = sorted(Path(export_path).glob("[0-9]" * 10))
        for old in numbered[: -self._keep] if self._keep else ():
            shutil.rmtree(old, ignore_errors=True)
        return path

    def _is_due(self, eval_result: Mapping[str, Any], final: bool) -> bool:
        """Returns whether to export after this evaluation, the last one if `final`."""
        return True


class FinalExporter(LatestExporter):
    """`tf.estimator.FinalExporter`: exports once, when training is over."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, None)

    def _is_due(self, eval_result: Mapping[str, Any], final: bool) -> bool:
        return final


def _loss_smaller(best_eval_result: Any, current_eval_result: Any) -> bool:
    return bool(best_eval_result["loss"] > current_eval_result["loss"])


class BestExporter(LatestExporter):
    """`tf.estimator.BestExporter`: exports when an evaluation is better than all before it.

    The best result of earlier processes is not read from event files: the first evaluation of a
    process always exports.

    Args:
      name: the name of the exports' directory, by default `best_exporter`.
      serving_input_receiver_fn: as `Estimator.export_saved_model` takes it.
      event_file_pattern: has no effect.
      compare_fn: takes `best_eval_result` and `current_eval_result` and returns whether the latter
        is better; by default, whether its loss is smaller.
      assets_extra: as `Estimator.export_saved_model` takes it.
      as_text: as `Estimator.export_saved_model` takes it.
      exports_to_keep: the number of exports to keep, by default 5; None keeps all.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Callable[[], Any] | None = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[..., bool] = _loss_smaller,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text, exports_to_keep)
        self._compare = compare_fn
        self._best: Mapping[str, Any] | None = None

    def _is_due(self, eval_result: Mapping[str, Any], final: bool) -> bool:
        if self._best is not None and not self._compare(
            best_eval_result=self._best, current_eval_result=eval_result
        ):
            return False
        self._best = eval_result
        return True
