"""Evaluates a finished run on the test split."""

from __future__ import annotations

import tensorflow as tf

from runner.checkpoints.locate import require_checkpoint
from runner.graph.build import build_graph
from runner.hooks import evaluate
from runner.system.signals import Interruption
from runner.system.status import Status
from runner.training.run import Run


def evaluate_run(run: Run) -> float:
    """Evaluates the best checkpoint of the newest finished run on the test split.

    The metrics are added to the run's record as `test/...`. Returns the objective's value there.

    Raises:
      RunDirectoryError: when there is no finished run of this configuration.
    """
    config, store, screen, directory = run.config, run.store, run.screen, run.finished()
    prefix = require_checkpoint(str(directory.best))
    built = build_graph(config, "test", train=False)
    with built.graph.as_default(), tf.compat.v1.Session() as session:
        built.saver.restore(session, prefix)
        step = int(session.run(tf.compat.v1.train.get_global_step()))
        metrics = evaluate(session, built.split)
    shown = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    screen.line(f"{prefix}: test  {shown}")
    if store.recorded(directory.path):
        # A signal in between would leave the finished run RUNNING.
        with Interruption().handled() as interruption, interruption.deferred():
            name = f"{config.name} {directory.path.name}"
            ended = Status.FINISHED
            tracker = store.open(directory.path, config.name, name, {}, ended=ended)
            tracker.log_metrics({f"test/{name}": value for name, value in metrics.items()}, step)
            tracker.close(ended)
        interruption.check()
        screen.line(f"results: {tracker.location()}")
    return metrics[config.train.objective.removeprefix("validation/")]
