"""Evaluations of a split: in the training session, or in a graph and a session of their own."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import tensorflow as tf

from runner.errors import ConfigError
from runner.graph.graph_spec import GraphSpec, local_init_op
from runner.session.monitored_session import ChiefSessionCreator, MonitoredSession
from runner.session.session_manager import PLACED_SOFTLY

OnBatch: TypeAlias = Callable[[Mapping[str, float]], None]


class EvaluationCutError(Exception):
    """An evaluation was cut short."""


def never_cut() -> bool:
    """Lets every evaluation complete."""
    return False


class Evaluation(ABC):
    """Evaluates one pass over a split of the data.

    Attributes:
      split: `train`, `validation` or `test`.
    """

    split: str

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""

    @abstractmethod
    def evaluate(
        self,
        session: tf.compat.v1.Session,
        cut: Callable[[], bool] = never_cut,
        on_batch: OnBatch | None = None,
    ) -> dict[str, float]:
        """Returns the metrics of the weights that a session of the built graph holds.

        Args:
          session: holds the weights.
          cut: called after each batch; True ends the evaluation without a result.
          on_batch: takes the metrics of the batches so far after each batch; None by default. An
            evaluation in another graph does not call it.

        Raises:
          EvaluationCutError: when `cut` returned True.
          ConfigError: when the split holds no example, or repeats forever.
        """


@dataclass(frozen=True)
class InGraphEvaluation(Evaluation):
    """An evaluation in the same graph and session as training.

    Attributes:
      initializer: starts a pass.
      logs: metric name -> value of all batches of the pass so far, float32 scalars; the step that
        the model evaluates a batch with returns them.
      cardinality: how many batches a pass has, as `tf.data.Dataset.cardinality`; None where it is
        known to end.
    """

    split: str
    initializer: tf.Operation
    logs: Mapping[str, tf.Tensor]
    cardinality: int | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return tuple(self.logs)

    def require_data(self) -> None:
        """Raises a ConfigError where a pass is known to hold no example, or to repeat forever."""
        if self.cardinality == 0:
            raise _empty(self.split)
        if self.cardinality is not None:
            require_end(self.split, self.cardinality)

    def evaluate(
        self,
        session: tf.compat.v1.Session,
        cut: Callable[[], bool] = never_cut,
        on_batch: OnBatch | None = None,
    ) -> dict[str, float]:
        """Returns the values after the last batch, as `keras.Model.evaluate` does."""
        if not self.metrics:
            return {}
        self.require_data()
        session.run(self.initializer)
        fetches, values = dict(self.logs), None
        while True:
            try:
                values = session.run(fetches)
            except tf.errors.OutOfRangeError:
                break
            if cut():
                raise EvaluationCutError
            if on_batch is not None:
                on_batch(_floats(values))
        if values is None:
            raise _empty(self.split)
        return _floats(values)


def _empty(split: str) -> ConfigError:
    return ConfigError.of(f"data.{split}() gives no example to evaluate")


def _floats(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


@dataclass(frozen=True)
class SeparateEvaluation(Evaluation):
    """An evaluation in another graph and session, which a temporary checkpoint gives the weights.

    Attributes:
      graph: holds everything but `transfer`.
      values: metric name -> its value over all batches since the session began.
      update: evaluates one batch; it raises OutOfRangeError when the input has ended.
      scaffold: its saver restores the model, its local init prepares the rest.
      hooks: hooks of the evaluation.
      transfer: saves the model for that saver, in the graph of the session that holds it.
      rebuild: builds the evaluation again for every call of `evaluate`, for hooks whose `begin`
        adds operations or starts counting; None, the default, uses the graph again.
      once: whether `update` runs once, because it reads nothing that ends; by default not.
      cardinality: as in `InGraphEvaluation`.
      explaining: surrounds the session and explains errors of the graph's operations; by default
        they stay as they are.
    """

    split: str
    graph: tf.Graph
    values: Mapping[str, Any]
    update: tf.Operation
    scaffold: tf.compat.v1.train.Scaffold
    hooks: Sequence[tf.compat.v1.train.SessionRunHook]
    transfer: tf.compat.v1.train.Saver
    rebuild: Callable[[], SeparateEvaluation] | None = None
    once: bool = False
    cardinality: tf.Tensor | None = None
    explaining: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return tuple(self.values)

    def evaluate(
        self,
        session: tf.compat.v1.Session,
        cut: Callable[[], bool] = never_cut,
        on_batch: OnBatch | None = None,
    ) -> dict[str, float]:
        """Evaluates the weights in a second session."""
        evaluation = self if self.rebuild is None else self.rebuild()
        with temporary_checkpoint(session, self.transfer) as checkpoint:
            return _floats(evaluation._evaluate_checkpoint(checkpoint, cut))

    def _evaluate_checkpoint(self, checkpoint: str, cut: Callable[[], bool]) -> dict[str, Any]:
        """Returns the metrics of a checkpoint, evaluated in a new session.

        Args:
          checkpoint: its path.
          cut: called after each batch; True ends the evaluation without a result.

        Raises:
          EvaluationCutError: when `cut` returned True.
          ConfigError: when the input holds no batch, or repeats forever.
        """
        final = tf.compat.v1.train.FinalOpsHook(dict(self.values))
        batches = 0
        with self.graph.as_default():
            creator = ChiefSessionCreator(
                self.scaffold, config=PLACED_SOFTLY, checkpoint_filename_with_path=checkpoint
            )
            with self.explaining(), MonitoredSession(creator, [*self.hooks, final]) as session:
                if self.cardinality is not None:
                    # Hooks do not take it for a step.
                    count = session.run_step_fn(
                        lambda step_context: step_context.session.run(self.cardinality)
                    )
                    require_end(self.split, count)
                while not session.should_stop():
                    session.run(self.update)
                    batches += 1
                    if cut():
                        raise EvaluationCutError
                    if self.once:
                        break
        if batches == 0:
            raise ConfigError.of(f"the input of mode {self.split} holds no batch to evaluate")
        return dict(final.final_ops_values)


@contextmanager
def temporary_checkpoint(
    session: tf.compat.v1.Session, saver: tf.compat.v1.train.Saver
) -> Iterator[str]:
    """Saves the variables of a session, and deletes the checkpoint after the block."""
    with tempfile.TemporaryDirectory(prefix="evaluation-") as folder:
        path = str(Path(folder, "model.ckpt"))
        yield saver.save(session, path, write_meta_graph=False, write_state=False)
    # The saver would delete the files that it remembers, which are gone.
    saver.set_last_checkpoints_with_time([])


def separate_evaluation(
    split: str, spec: GraphSpec, saver: tf.compat.v1.train.Saver
) -> SeparateEvaluation:
    """Returns the evaluation of the default graph, which `spec` describes.

    `saver` restores its variables, and is the evaluation's `transfer`.
    """
    metrics = {} if spec.loss is None else {"loss": tf.compat.v1.metrics.mean(spec.loss)}
    metrics |= spec.evaluation
    inputs = [] if spec.input is None else [spec.input.initializer]
    scaffold = tf.compat.v1.train.Scaffold(
        local_init_op=local_init_op(spec.scaffold, *inputs),
        saver=saver,
        copy_from_scaffold=spec.scaffold,
    )
    saver.build()
    return SeparateEvaluation(
        split=split,
        graph=tf.compat.v1.get_default_graph(),
        values={
            name: tf.nest.map_structure(tf.convert_to_tensor, value)
            for name, (value, _) in metrics.items()
        },
        update=tf.group(*tf.nest.flatten([update for _, update in metrics.values()])),
        scaffold=scaffold,
        hooks=spec.hooks,
        transfer=saver,
    )


def require_end(split: str, cardinality: int) -> None:
    """Raises a ConfigError where a pass over a split would never end, or may not."""
    endless = cardinality == tf.data.INFINITE_CARDINALITY
    if split == "train" and cardinality < 0:
        raise ConfigError.of(
            f"data.train() repeats forever{'' if endless else ', as far as is known'}",
            "an evaluation is one pass over a split, and the size of this one is not known",
            "give the data a method sizes() that returns {'train': COUNT, ...}",
        )
    if endless:
        raise ConfigError.of(
            f"the data of the {split} split repeats forever",
            "an evaluation is one pass over a split",
            "leave out .repeat(), or end it with .take(COUNT)",
        )
