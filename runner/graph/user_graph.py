"""The graph of a configuration with a `graph`, whose target adds all of it for one mode.

The target is called once for each mode, in a new graph with the seed and the global step. The
evaluation runs in a separate session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from runner.config import conflicts
from runner.config.cluster_spec import is_cluster
from runner.config.instantiation import build_target
from runner.config.objective import require_objective
from runner.errors import ConfigError, Problem, RunnerError
from runner.graph.built_graph import (
    BuiltGraph,
    Features,
    GraphMaker,
    PredictionGraph,
    ServingGraph,
    Training,
)
from runner.graph.evaluation import SeparateEvaluation, separate_evaluation
from runner.graph.graph_spec import GraphSpec
from runner.graph.new_graph import new_graph
from runner.graph.replica import Replica
from runner.graph.serving import SIGNATURE, fed_predictions, predictions_of, save_model
from runner.graph.session_variables import (
    checkpoint_saver,
    name_variables,
    rollback_count,
    saved_as,
    variable_specs,
)
from runner.planning.model_variables import which_train
from runner.session.fetches import operations_for, operations_run
from runner.session.session_manager import PLACED_SOFTLY
from runner.system.user_code import (
    located,
    raised,
    raised_by_operation,
    staying,
    unchanged_random_states,
)

# Types of operations, by their beginnings, at which an input can end.
_ENDING = ("IteratorGetNext", "Queue", "Reader", "PyFunc", "EagerPyFunc")


class UserGraph(GraphMaker):
    """The graph that the target of `graph` builds.

    Attributes:
      key: the key of the configuration that names the target.
    """

    key = data_key = "graph"

    def function(self) -> Callable[..., GraphSpec]:
        """Returns the function that adds the graph for a `mode` to the default graph."""
        built: Callable[..., GraphSpec] = build_target(self.key, {**self._node, "_partial_": True})
        return built

    def input_key(self, mode: str) -> str:
        """Returns the key of the configuration that the input for a mode comes from."""
        return self.key

    @contextmanager
    def explaining(self, mode: str) -> Iterator[None]:
        """Names the key that the operations of the graph for a mode come from in their errors.

        Raises:
          UserCodeError: in place of TensorFlow's error.
        """
        try:
            yield
        except tf.errors.OpError as error:
            key = self.input_key(mode) if "IteratorGetNext" in str(error.message) else self.key
            frames = error.op.traceback if error.op is not None else ()
            raise raised_by_operation(key, error, frames) from error

    @property
    def _node(self) -> Mapping[str, Any]:
        node: Mapping[str, Any] = getattr(self.config, self.key)
        return node

    def build(self, split: str, *, train: bool, replica: Replica) -> BuiltGraph:
        """Builds the training graph and the evaluation graph, or only the latter."""
        config = self.config
        # A session of this process evaluates, also in a cluster.
        with new_graph(config, Replica()):
            evaluation, variables = self._evaluation(split)
        if evaluation.hooks:
            evaluation = replace(evaluation, rebuild=lambda: self._rebuilt_evaluation(split))
        if train:
            return self._build_training(evaluation, replica)
        return BuiltGraph(
            graph=evaluation.graph,
            variables=variables,
            specs=variable_specs(
                variables, which_train(None, variables), policies={}, training=None
            ),
            training=None,
            evaluation=evaluation,
            saver=evaluation.transfer,
            explaining=partial(self.explaining, split),
        )

    def _build_training(self, evaluation: SeparateEvaluation, replica: Replica) -> BuiltGraph:
        config = self.config
        with new_graph(config, replica) as graph:
            spec = self.spec("train")
            problems = list(self._training_problems(spec))
            if problems:
                raise ConfigError(*problems)
            training = self._training(spec)
            variables = name_variables(tf.compat.v1.global_variables())
            transfer = checkpoint_saver(config, saved_as(variables), None)
            saver = spec.scaffold.saver
            if saver is None:
                source = spec.input if training.saved_input else None
                saver = checkpoint_saver(config, saved_as(variables), source)
            saver.build()
            summary_op = spec.scaffold.summary_op
            return BuiltGraph(
                graph=graph,
                variables=variables,
                specs=variable_specs(
                    variables, of_the_model(variables, spec.loss), policies={}, training=training
                ),
                training=training,
                evaluation=replace(evaluation, transfer=transfer),
                saver=saver,
                explaining=partial(self.explaining, "train"),
                scaffold=spec.scaffold,
                graph_hooks=spec.hooks,
                chief_hooks=spec.chief_hooks,
                summary_op=tf.compat.v1.summary.merge_all() if summary_op is None else summary_op,
            )

    def serving(self) -> ServingGraph:
        """Builds the graph for mode `export`."""
        with new_graph(self.config, Replica()):
            spec = self.spec("export")
            if SIGNATURE not in spec.signatures:
                raise ConfigError.of(
                    f"the graph for mode export has no signature {SIGNATURE}",
                    "that is what a served model answers with",
                    "return GraphSpec(signatures={name: SignatureDef})",
                    tuple(spec.signatures),
                )
            return serving_of(spec)

    def predicting(self, features: Features) -> PredictionGraph:
        """Builds the graph for mode `export`, whose inputs are fed."""
        if not callable(features):
            raise ConfigError.of(
                f"{self.key}: a graph has no features of the {features} split by themselves",
                "its mode export takes them as inputs",
                "name them: predict.file=FILE.npz, or a `_target_` as predict.data",
            )
        explaining = partial(self.explaining, "export")
        return fed_predictions(self.serving(), features, explaining)

    def save(self, checkpoint: str, folder: Path) -> None:
        """Writes the signatures of the graph for mode `export`."""
        serving = self.serving()
        with serving.graph.as_default(), tf.compat.v1.Session(config=PLACED_SOFTLY) as session:
            save_model(session, folder, checkpoint, serving=serving)

    def predictions(
        self, features: Features, checkpoint: str
    ) -> Iterator[Mapping[str, NDArray[Any]]]:
        """Yields what the graph for mode `export` predicts."""
        return predictions_of(self.predicting(features), checkpoint)

    def example(self) -> Mapping[str, Any]:
        """Returns the example of the graph for mode `export`."""
        with new_graph(self.config, Replica()):
            example = self.spec("export").example
        return {} if example is None else example()

    def spec(self, mode: str) -> GraphSpec:
        """Adds the graph for a mode to the default graph.

        Args:
          mode: `train`, `validation`, `test` or `export`.

        Raises:
          ConfigError: when the target does not fit, or raises a ValueError or TypeError.
          UserCodeError: when it raises another error.
        """
        function = self.function()
        with self.calling(mode):
            spec = function(mode=mode)
        if not isinstance(spec, GraphSpec):
            raise ConfigError.of(
                f"{self.key}: {self._node['_target_']} returns {type(spec).__name__} for mode "
                f"{mode}",
                "the run needs the graph's loss, train_op and so on",
                "return runner.GraphSpec(loss=..., train_op=...)",
            )
        return spec

    @contextmanager
    def calling(self, mode: str) -> Iterator[None]:
        """Reports errors of the target, called for a mode, as `spec` does."""
        key, target = self.key, self._node["_target_"]
        try:
            with staying():
                yield
        except RunnerError:
            raise
        except (ValueError, TypeError) as error:
            problem = Problem(f"{key}: {target} fails for mode {mode}", located(error))
            raise ConfigError(problem) from error
        except Exception as error:
            raise raised(key, error, f"{target} was called for mode {mode}") from error

    def _training_problems(self, spec: GraphSpec) -> Iterator[Problem]:
        key = self.key
        for name in ("loss", "train_op"):
            if getattr(spec, name) is None:
                yield Problem(f"{key}: {name} is missing for mode train", "no step can be trained")
        graph = tf.compat.v1.get_default_graph()
        for name, value in {"loss": spec.loss, "train_op": spec.train_op, **spec.metrics}.items():
            if getattr(value, "graph", graph) is not graph:
                yield Problem(
                    f"{key}: {name} belongs to another graph",
                    "each mode is built in a new graph",
                    f"create {name} within the call",
                )
                return
        if callable(spec.train_op):
            if is_cluster(self.config.cluster):
                state = f"{key}: train_op is a function, in a cluster"
                yield conflicts.TRAINED_BY_FUNCTION.problem(state)
        elif spec.train_op is not None:
            step = tf.compat.v1.train.get_global_step()
            if not _may_write(spec.train_op, step):
                yield Problem(
                    f"{key}: train_op does not increment the global step",
                    "train.steps counts global steps, so training would never end",
                    "minimize(..., global_step=tf.compat.v1.train.get_global_step())",
                )

    def _training(self, spec: GraphSpec) -> Training:
        loss, train_op, source = spec.loss, spec.train_op, spec.input
        if loss is None or train_op is None:
            raise ValueError("checked before")
        # After a function has run, all that is left of its step is to read the global step.
        operation = tf.no_op() if callable(train_op) else getattr(train_op, "op", train_op)
        with tf.control_dependencies([operation]):
            step = tf.cast(tf.identity(tf.compat.v1.train.get_global_step()), tf.int64)
        saves_input = self.config.train.save_input and spec.scaffold.saver is None
        kind: Callable[..., Training] = Training
        if callable(train_op):
            kind = partial(_FunctionTraining, function=train_op)
        return kind(
            train_op=operation,
            step=step,
            values={
                name: tf.cast(value, tf.float32)
                for name, value in {"loss": loss, **spec.metrics}.items()
            },
            rollbacks=rollback_count(self.config),
            input_initializer=tf.no_op() if source is None else source.initializer,
            input_seconds=tf.constant(0.0, tf.float64) if source is None else source.seconds,
            input_name=f"the input of {self.input_key('train')}",
            saved_input=source.state if source is not None and saves_input else None,
        )

    def _evaluation(self, split: str) -> tuple[SeparateEvaluation, dict[str, tf.Variable]]:
        """Adds the graph that evaluates a split to the default graph.

        Returns:
          The evaluation, of metrics that are numbers, and name -> variable of the model.
        """
        spec = self.spec(split)
        variables = name_variables(tf.compat.v1.global_variables())
        saver = spec.scaffold.saver or checkpoint_saver(self.config, saved_as(variables), None)
        evaluation = separate_evaluation(split, spec, saver)
        numbers = {
            name: value
            for name, value in evaluation.values.items()
            if tf.is_tensor(value)
            and value.dtype not in (tf.string, tf.variant)
            and value.shape.rank in (None, 0)
        }
        require_objective(self.config.train.objective, [*numbers])
        ends = any(kind.startswith(_ENDING) for kind, _ in operations_run([evaluation.update]))
        evaluation = replace(
            evaluation,
            values=numbers,
            once=not ends,
            cardinality=None if spec.input is None else spec.input.cardinality(),
            explaining=partial(self.explaining, split),
        )
        return evaluation, variables

    def _rebuilt_evaluation(self, split: str) -> SeparateEvaluation:
        """Builds the evaluation graph again, without changing Python's random states."""

        def build() -> SeparateEvaluation:
            with new_graph(self.config, Replica()):
                return self._evaluation(split)[0]

        # Keras resets the names of layers in a thread without a graph, and here one is in use.
        with unchanged_random_states(), ThreadPoolExecutor(1) as thread:
            return thread.submit(build).result()


@dataclass(frozen=True, kw_only=True)
class _FunctionTraining(Training):
    """A training step that is a function of the session; hooks see the run that follows it."""

    function: Callable[[tf.compat.v1.Session], object]

    def run_step(self, session: tf.compat.v1.train.MonitoredSession) -> None:
        """Calls the function, and runs the hooks.

        Raises:
          ConfigError: when it did not increment the global step.
        """
        session.run_step_fn(self._call)
        super().run_step(session)

    def _call(self, step_context: Any) -> None:
        session, step = step_context.session, tf.compat.v1.train.get_global_step()
        before = session.run(step)
        self.function(session)
        if session.run(step) <= before:
            raise ConfigError.of(
                f"graph: train_op did not increment the global step {before}",
                "train.steps counts global steps, so training would never end",
                "run an assign_add of tf.compat.v1.train.get_global_step() in each step",
            )


def serving_of(spec: GraphSpec) -> ServingGraph:
    """Prepares the default graph, which `spec` describes, for a SavedModel."""
    scaffold = spec.scaffold
    saver = scaffold.saver or tf.compat.v1.train.Saver()
    main_op = scaffold.local_init_op
    if main_op is None:
        main_op = tf.compat.v1.train.Scaffold.default_local_init_op()
    return ServingGraph(
        graph=tf.compat.v1.get_default_graph(),
        signatures=spec.signatures,
        restorer=saver,
        saver=saver,
        main_op=main_op,
    )


def _may_write(train_op: tf.Operation | tf.Tensor, variable: tf.Variable) -> bool:
    """Returns whether an operation depends on one that may write a variable."""
    consumers = variable.op.outputs[0].consumers()
    reads = ("ReadVariableOp", "VarIsInitializedOp", "IsVariableInitialized", "Identity")
    runs = operations_for([train_op])
    return any(operation in runs for operation in consumers if operation.type not in reads)


def of_the_model(
    variables: Mapping[str, tf.Variable], loss: tf.Tensor | tf.Operation | None
) -> dict[str, bool]:
    """Returns the variables that train or that the loss depends on, and whether they train.

    Others are an optimizer's.
    """
    read = operations_for([] if loss is None else [loss])
    return {
        name: variable.trainable
        for name, variable in variables.items()
        if variable.trainable or variable.op in read
    }
