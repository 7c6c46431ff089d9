"""Evaluates a checkpoint of a run, or the values that training would start from, on a split."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import tensorflow as tf

from runner.checkpoints.contents import NoCheckpointError
from runner.checkpoints.locate import checkpoint_paths
from runner.config.choices import SCAFFOLDS, EvaluatedSplit
from runner.config.schema import RunConfig
from runner.errors import CheckpointError, ConfigError, Problem, RunDirectoryError
from runner.graph.build import build_graph
from runner.graph.session_variables import saved_as
from runner.planning.json_report import provenance_document
from runner.planning.plan import RestorationPlan
from runner.planning.report import summary
from runner.runs.run_directory import PROVENANCE, RunDirectory
from runner.session.session_manager import PLACED_SOFTLY
from runner.system.signals import Interruption
from runner.system.status import Status
from runner.training.experiment import Experiment


@dataclass(frozen=True)
class Weights:
    """The checkpoint to evaluate or export.

    Attributes:
      prefix: its path without the suffix of a file.
      step: its global step.
      directory: the run that saved it; None for the values that training would start from.
      config: the configuration to build the graph with.
    """

    prefix: str
    step: int
    directory: RunDirectory | None
    config: RunConfig

    def __str__(self) -> str:
        return self.prefix if self.directory else "the start from the scaffolds"

    def output(self, kind: str, container: Path) -> Path:
        """Returns the path for what is made of the weights, such as `RUN/export-STEP`.

        Without a run it is `export-scaffolds` in the container of runs.
        """
        if self.directory is None:
            return container / f"{kind}-{SCAFFOLDS}"
        return self.directory.path / f"{kind}-{self.step}"

    def copy_provenance(self, folder: Path) -> None:
        """Copies the provenance that is beside the checkpoint, if there is one."""
        provenance = Path(self.prefix).parent / PROVENANCE
        if provenance.is_file():
            shutil.copyfile(provenance, folder / PROVENANCE)


@contextmanager
def chosen_weights(experiment: Experiment, which: str) -> Iterator[Weights]:
    """Provides the checkpoint that `evaluate.which` or `export.which` names.

    For `scaffolds` this is a temporary checkpoint with the initial values of a fresh start.

    Args:
      experiment: the experiment whose run it is.
      which: `best`, `latest` or a step of the run, or `scaffolds`.

    Raises:
      RunDirectoryError: when there is no such run, or it has no checkpoint.
      CheckpointError: when it has others, or a source cannot be read.
      PlanError: when the plan of a fresh start has problems.
    """
    if which == SCAFFOLDS:
        with tempfile.TemporaryDirectory() as folder:
            prefix = _save_initial_values(experiment, Path(folder))
            # Nothing is averaged yet.
            train = replace(experiment.config.train, evaluate_ema=False)
            yield Weights(prefix, step_of(prefix), None, replace(experiment.config, train=train))
        return
    directory = experiment.finished_run()
    try:
        (prefix,) = checkpoint_paths(str(directory.path), which)
    except NoCheckpointError as error:
        raise RunDirectoryError.of(
            f"{directory.path} has no checkpoint",
            f"the run is {directory.load_record().status}",
            "continue it with the command that started it",
        ) from error
    yield Weights(prefix, step_of(prefix), directory, experiment.config)


def evaluate_run(experiment: Experiment) -> Mapping[str, float]:
    """Evaluates a checkpoint, by default the best of the newest finished run, on a split.

    Metrics of the test split are added to the run's record as `test/...`.

    Returns:
      Name -> value of the metrics.

    Raises:
      RunnerError: as `chosen_weights`.
    """
    config, split = experiment.config, experiment.config.evaluate.split
    with chosen_weights(experiment, config.evaluate.which) as weights:
        built = build_graph(weights.config, split.value, train=False)
        with built.graph.as_default(), tf.compat.v1.Session(config=PLACED_SOFTLY) as session:
            built.saver.restore(session, weights.prefix)
            session.run(tf.compat.v1.tables_initializer())
            with built.explaining():
                metrics = built.evaluation.evaluate(session)
    Interruption.check_swallowed()
    if not metrics:
        raise ConfigError.of(
            "mode=evaluate: the model evaluates nothing",
            "it has neither a test_step nor a loss",
            "give it a test_step that returns metrics",
        )
    shown = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    experiment.screen.line(f"{weights}: {split.value}  {shown}")
    if weights.directory is not None and split is EvaluatedSplit.test:
        _record(experiment, weights.directory, metrics, weights.step)
    return metrics


def _record(
    experiment: Experiment, directory: RunDirectory, metrics: Mapping[str, float], step: int
) -> None:
    """Adds metrics to the record of a run that has ended."""
    config, store, screen = experiment.config, experiment.store, experiment.screen
    if not store.recorded(directory.path):
        return
    ended = directory.load_record().status.in_mlflow
    if ended is Status.RUNNING:  # Its process may still record.
        screen.line(f"not recorded: {directory.path} is {ended}")
        return
    # A signal in between would leave the run RUNNING.
    with Interruption().handled() as interruption, interruption.deferred():
        name = f"{config.name} {directory.path.name}"
        tracker = store.open(directory.path, config.name, name, tags={}, ended=ended)
        tracker.log_metrics({f"test/{name}": value for name, value in metrics.items()}, step)
        tracker.close(ended, interruption.remaining)
    interruption.check()
    screen.line(f"results: {tracker.location()}")


def _save_initial_values(experiment: Experiment, folder: Path) -> str:
    """Saves the values that training would start from and their provenance; returns the prefix."""
    built = experiment.build()
    plan = experiment.make_sound_plan(built)
    _require_trained(experiment, plan)
    for line in summary(plan):
        experiment.screen.line(line)
    document = provenance_document(
        plan,
        experiment.sources.origins(),
        experiment=experiment.config.name,
        run_dir=experiment.container.resolve(),
    )
    (folder / PROVENANCE).write_text(json.dumps(document, indent=1) + "\n")
    with built.graph.as_default(), tf.compat.v1.Session(config=PLACED_SOFTLY) as session:
        scaffold = built.scaffold
        init_op, feeds = scaffold.init_op, scaffold.init_feed_dict
        restorer = experiment.restorer(built, plan)
        restorer.warm_start(session, init_op, feeds, init_fn=scaffold.init_fn)
        saver = tf.compat.v1.train.Saver(saved_as(built.variables))
        return str(saver.save(session, str(folder / "model.ckpt"), write_meta_graph=False))


def _require_trained(experiment: Experiment, plan: RestorationPlan) -> None:
    """Raises if a source of the plan is an experiment that is not trained yet."""
    problems = [
        Problem(
            f"scaffolds.{name}.checkpoint is {experiment.config.scaffolds[name].checkpoint}",
            f"mode={experiment.config.mode.value} trains nothing, and it is not trained yet",
            "train it first, or name a checkpoint",
        )
        for name, spec in plan.sources.items()
        if spec is not None and name not in experiment.sources.origins()
    ]
    if problems:
        raise CheckpointError(*problems)


def step_of(prefix: str) -> int:
    """Returns the global step of a checkpoint."""
    return int(tf.train.load_variable(prefix, tf.compat.v1.GraphKeys.GLOBAL_STEP))
