"""A run as Python sees it: its history, best evaluation, plan and model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from runner.api.door import door, unchanged_process
from runner.config.composition import command_scope, compose_command, without_hydra
from runner.config.epochs import logs_in_order
from runner.config.instantiation import python_objects
from runner.config.schema import RunConfig
from runner.config.spelling import spelled
from runner.config.validation import validate
from runner.console import Listing, as_html
from runner.errors import RunnerError
from runner.runs.recorded_config import recorded_config
from runner.runs.run_directory import RunDirectory
from runner.tracking import open_store
from runner.tracking.journal import history
from runner.tracking.tracking_directory import TrackingDirectory

if TYPE_CHECKING:
    import pandas as pd

    from runner.restoration.eager_plan import WarmStartPlan


@dataclass(frozen=True, repr=False)
class Result:
    """A run, as it is on the disk; shows itself in a notebook.

    Attributes:
      config: its configuration.
      directory: its directory; None of a plan, and where no run is concerned.
      plan: where the variables came from; None where a run continued from its own checkpoint.
      evaluated: the metrics of `mode=evaluate`.
      objects: what `${python:NAME}` in the configuration stands for, of `runner.fit`.
      objective: the best one of this training, or the one of `mode=evaluate`; None without one.
    """

    config: RunConfig
    directory: Path | None = None
    plan: WarmStartPlan | None = None
    evaluated: Mapping[str, float] = field(default_factory=dict)
    objects: Mapping[str, Any] = field(default_factory=dict)
    objective: float | None = None

    @property
    def metrics(self) -> pd.DataFrame:
        """All that the run has recorded: a row for each step, a column for each metric."""
        import pandas as pd

        steps = history(TrackingDirectory(self._run.path).journal)
        frame = pd.DataFrame.from_dict(steps, orient="index")
        return frame.rename_axis("step")

    @property
    def history(self) -> dict[str, list[float]]:
        """The metrics of each epoch, as `History.history` of `fit`: `loss`, `val_loss` and so on.

        They are as callbacks have left them in the logs of an epoch. An epoch that is not over has
        its newest metrics; a run without epochs has none.
        """
        named: dict[str, list[float]] = {}
        for values in self._epochs.values():
            metrics, added = {}, {}
            for name, value in values.items():
                kind, _, metric = name.partition("/")
                if kind == "train" and metric not in _NOT_IN_HISTORY:
                    metrics[metric] = value
                elif kind == "validation":
                    metrics[f"val_{metric}"] = value
                elif kind == "callbacks":
                    added[metric] = value
            for metric, value in (logs_in_order(metrics) | added).items():
                named.setdefault(metric, []).append(value)
        return named

    @property
    def epoch(self) -> list[int]:
        """The indices of the epochs, as `History.epoch` of `fit`."""
        return [int(number) - 1 for number in self._epochs]

    @property
    def _epochs(self) -> dict[float, dict[str, float]]:
        """Number of an epoch -> what has been recorded of it."""
        epochs: dict[float, dict[str, float]] = {}
        for values in history(TrackingDirectory(self._run.path).journal).values():
            if "epoch" in values:
                epochs.setdefault(values["epoch"], {}).update(values)
        return epochs

    @property
    def best(self) -> dict[str, float]:
        """The `step` and the metrics of the best evaluation; empty before one."""
        best = self._run.best_evaluation()
        return {} if best is None else {"step": best[0], **best[1]}

    @property
    def mlflow_run_id(self) -> str | None:
        """MLflow's id of the run; None before it is delivered there."""
        return open_store(self.config.tracking, {}).run_id(self._run.path)

    @door
    def model(self, which: str | int = "") -> Any:
        """Returns the trained Keras model, outside any graph: for `predict`, `save`, a `fit`.

        Args:
          which: `best`, `latest` or a step; by default the best checkpoint, or else the newest.

        Raises:
          RunnerError: when there is no such checkpoint, or the run has no Keras model.
        """
        from runner.checkpoints.locate import checkpoint_paths
        from runner.graph.trained_model import trained_model

        which = str(which) or ("best" if self.best else "latest")
        with unchanged_process(), python_objects(self.objects):
            (prefix,) = checkpoint_paths(str(self._run.path), which)
            return trained_model(self.config, prefix)

    @property
    def _run(self) -> RunDirectory:
        if self.directory is None:
            state = f"mode={self.config.mode.value} has made no run"
            raise RunnerError.of(state, "only a run has this", "train it: mode=train")
        return RunDirectory(self.directory)

    def __repr__(self) -> str:
        """Shows where the run is, how it ended and its best evaluation."""
        if self.directory is None:
            return f"<{self.config.name}: mode={self.config.mode.value}>"
        return f"<{'; '.join(self._summary())}>"

    def _summary(self) -> list[str]:
        record = self._run.read()
        if record is None:
            return [f"{self.config.name}: {self.directory}, which is not there"]
        lines = [f"{record.name}: {record.status}, {self.directory}"]
        if best := self.best:
            lines.append(f"best: {_shown(best)}")
        if self.evaluated:
            lines.append(f"{self.config.evaluate.split.value}: {_shown(self.evaluated)}")
        return lines

    def _repr_html_(self) -> str:
        if self.directory is None:
            return "" if self.plan is None else self.plan._repr_html_()
        lines = self._summary()
        steps = history(TrackingDirectory(self.directory).journal)
        names = list(dict.fromkeys(name for values in steps.values() for name in values))
        rows = [
            (str(step), *(f"{values[name]:.4g}" if name in values else "" for name in names))
            for step, values in list(steps.items())[-_ROWS:]
        ]
        return as_html(Group(*map(Text, lines), Listing(("step", *names), rows)))


# What a run records of its steps besides the metrics of `fit`.
_NOT_IN_HISTORY = ("learning_rate", "input_seconds")

# The last rows of the history, in a notebook.
_ROWS = 10


def _shown(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


@door
def open_run(directory: str | Path) -> Result:
    """Opens a run by its directory, as one that `runner.run` returns; reads, and changes nothing.

    Raises:
      RunDirectoryError: when the folder is no run.
    """
    with command_scope():
        command = compose_command(["mode=evaluate", f"run_dir={spelled(str(directory))}"])
        config = validate(recorded_config(without_hydra(command), []))
    return Result(config, Path(directory))
