"""The steps of a Keras program, traced eagerly: how it trains, evaluates and resets its metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from runner.config import conflicts
from runner.config.choices import NonFinite
from runner.config.epochs import Epochs, step_logs_in_order
from runner.config.instantiation import name_of
from runner.config.schema import ScaffoldConfig
from runner.errors import ConfigError
from runner.graph.batch_norm import frozen_norms, statistics_notes, synchronized_norms
from runner.graph.compiling import METRICS, names_optimizer
from runner.graph.contracts import overrides
from runner.graph.program import Program
from runner.graph.run_optimizer import RunOptimizer, TrainingPolicy, accumulated
from runner.graph.step_errors import described, naming_calls, values_are_unknown
from runner.graph.step_sums import StepSums
from runner.graph.traces import Trace
from runner.internals.keras import (
    activity_losses_are_means,
    compiled_parts,
    compiled_with,
    finalize,
    layers_of,
)
from runner.planning.model_variables import addresses, keras_variables, which_train
from runner.planning.optimizer_state import optimizers_of
from runner.planning.variables import owners_of_weights
from runner.system.user_code import calling

SCALE = "learning_rate_scale"
"""The variable by which rollbacks multiply every learning rate."""


class KerasSteps:
    """Traces the steps of a program.

    Args:
      program: the program, built.
      epochs: the epochs, at whose begin metrics are reset; None resets them before every step.
      sums: the sums over replicas; None where there is one.

    Attributes:
      scaffolds: name of a variable -> the scaffold that owns it, whose settings decide how it
        trains.
      frozen: the names of variables that scaffolds keep from training, and that would train else.
      scale: multiplies every learning rate, a variable outside the session; None without rollbacks.
      notes: lines on what the program trains.
    """

    def __init__(
        self, program: Program, epochs: Epochs | None, sums: StepSums | None = None
    ) -> None:
        self._program, self._config, self._model = program, program.config, program.model
        self._epochs, self._sums = epochs, sums
        self.scaffolds = _owners(program)
        self.trainable = which_train(self._model, program.weights())
        self.notes = [*program.notes, *self._freeze()]
        rollback = self._config.train.non_finite.action is NonFinite["rollback"]
        self.scale = tf.Variable(1.0, trainable=False, name=SCALE) if rollback else None
        self._optimizers = [
            RunOptimizer(
                optimizer,
                self._config,
                program.step,
                self._policies(),
                rate_scale=self.scale,
                sums=sums,
            )
            for _, optimizer in optimizers_of(self._model)
        ]

    def train(self, spec: Any, *, frees: bool = False) -> Trace:
        """Traces the training step of batches of `spec`.

        Its arguments are the batches that it accumulates; for replicas also this replica's shares
        of their examples, float64, and its index, int32. Its outputs are the metrics by name,
        scalars of float32 or float64, in the order of the logs of `fit`; the learning rate, which
        is None for a model with several optimizers; and the metrics of the epoch so far, None if
        they are the same.

        Args:
          spec: the nested `tf.TypeSpec`s of a batch.
          frees: whether slots of the optimizer lose their zeros, for a session.

        Raises:
          ConfigError: when nothing is left to train, or the step returns no metrics.
          UserCodeError: when the model's code raises an error.
        """
        model, config = self._model, self._config
        self._require_trained()
        with self._program.freeing_zeros() if frees and self._built_by_keras() else nullcontext():
            self._set_up_optimizers()
        named = self._named("train_step")

        def step(batches: Any, shares: Any = (), index: Any = None) -> Any:
            if sums is not None:
                sums.begin(shares[0], index)
            finalize(model)
            self._begin_metrics()
            rate = self._learning_rate()
            with values_are_unknown(), calling("model", f"{named} was called with {arguments}"):
                if count > 1:
                    logs = accumulated(
                        model.train_step, batches, self._optimizers, sums=sums, shares=shares
                    )
                else:
                    logs = model.train_step(batches[0])
            values = self._scalars(step_logs_in_order(logs), named)
            if sums is not None:
                sums.share = shares[-1]
                values = sums.of_values(values)
                sums.finish_metrics()
                return values, rate, None
            return values, rate, step_logs_in_order(self._of_epoch(logs, named))

        arguments, count, sums = described(spec), config.train.accumulate, self._sums
        self._require_means()
        specs = [[spec] * count]
        if sums is not None:
            specs += [[tf.TensorSpec([], tf.float64)] * count, tf.TensorSpec([], tf.int32)]
        with ExitStack() as stack, naming_calls(model):
            stack.callback(finalize, model)
            for optimizer in self._optimizers:
                stack.enter_context(optimizer.installed())
            known = -1
            # Metrics that are made only in the step were not there yet to be reset at its begin.
            while known != len(self._program.metric_variables()):
                known = len(self._program.metric_variables())
                with self._summing():
                    trace = Trace(step, *specs, jit_compile=self._is_compiled())
        model.reset_metrics()
        self._require_effect(named)
        if not trace.outputs[0]:
            raise ConfigError.of(
                f"{named} returns no metrics",
                "a run records them, and stops where they are NaN",
                'return them by name, such as {"loss": loss}',
            )
        return trace

    def build_optimizers(self, spec: Any) -> None:
        """Creates the variables of the optimizers, by tracing where only a step creates them."""
        self._set_up_optimizers()
        if not all(wrapper.optimizer.built for wrapper in self._optimizers):
            self.train(spec)

    def build_averages(self, spec: Any) -> None:
        """Creates the averages of the weights, if there are any: an evaluation may read them."""
        kinds = [getattr(o.optimizer, "inner_optimizer", o.optimizer) for o in self._optimizers]
        if self._config.train.ema_decay is not None or any(kind.use_ema for kind in kinds):
            self.build_optimizers(spec)

    def test(self, spec: Any) -> Trace | None:
        """Traces the evaluation of batches of `spec`; None where the model cannot evaluate."""
        model, named = self._model, self._named("test_step")
        if not self._can_evaluate(spec):
            self.notes.append(
                "evaluation: none, the model has neither a test_step nor a loss of labels"
            )
            return None

        def step(batch: Any) -> Any:
            finalize(model)
            with values_are_unknown(), calling("model", f"{named} was called with {arguments}"):
                logs = model.test_step(batch)
            return self._of_epoch(logs, named) or self._scalars(logs, named)

        arguments = described(spec)
        with ExitStack() as stack, naming_calls(model):
            stack.callback(finalize, model)
            trace = Trace(step, spec, jit_compile=bool(model.jit_compile))
        model.reset_metrics()
        return trace

    def reset(self) -> Trace:
        """Traces the reset of the metrics."""

        def step() -> tf.Tensor:
            self._model.reset_metrics()
            return tf.constant(True)

        return Trace(step)

    def state(self) -> dict[str, tf.Variable]:
        """Returns name -> variable of what the run adds to the program."""
        return {} if self.scale is None else {SCALE: self.scale}

    def _of_epoch(self, logs: Any, step: str) -> dict[str, tf.Tensor] | None:
        """Returns what `fit` reports of an epoch or a pass; None for what the last step returns.

        Where a step of the model's own returns the names of the metrics, these are the metrics.
        """
        if not (overrides(self._model, "train_step") or overrides(self._model, "test_step")):
            return None
        if not all(getattr(metric, "built", True) for metric in self._model.metrics):
            return None  # What `compile` was given, and the step has not used.
        results = self._model.get_metrics_result()
        is_same = isinstance(logs, Mapping) and set(logs) == set(results)
        return self._scalars(results, step) if is_same else None

    def _set_up_optimizers(self) -> None:
        if self._config.train.ema_decay is not None:
            for optimizer in self._optimizers:
                optimizer.set_averages()
        model = self._model
        if not self._program.takes_steps and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)

    def _built_by_keras(self) -> bool:
        """Whether no `build` of a user's optimizer can read or assign the slots that it creates."""
        parts = [getattr(used, "inner_optimizer", used) for _, used in optimizers_of(self._model)]
        return all(type(part).build.__module__.partition(".")[0] == "keras" for part in parts)

    @contextmanager
    def _summing(self) -> Iterator[None]:
        """Sums metrics over the replicas within, and the statistics of a batch where asked for."""
        if self._sums is None:
            yield
            return
        always = self._config.devices.sync_batch_norm
        with (
            self._sums.of_metrics(self._program.metrics()),
            synchronized_norms(self._sums, always=always),
        ):
            yield

    def _require_means(self) -> None:
        """Raises a ConfigError for a loss that is a sum over examples, where there are replicas."""
        if self._sums is None:
            return
        several = "several devices or tasks train"
        regular = [
            layer for layer in layers_of(self._model) if layer.activity_regularizer is not None
        ]
        if regular and not activity_losses_are_means():
            state = f"layer {regular[0].name} has an activity_regularizer, and {several}"
            raise conflicts.SUMMED_ACTIVITY.error(state)
        losses = keras.tree.flatten(compiled_with(self._model).get("loss"))
        if any(getattr(loss, "reduction", "") == "sum" for loss in losses):
            raise conflicts.SUMMED_LOSS.error(f"a loss has the reduction 'sum', and {several}")

    def _is_compiled(self) -> bool:
        """Whether XLA compiles a training step, which it does for one device."""
        if self._model.jit_compile and self._sums is not None:
            self.notes.append("jit_compile: no effect, because XLA compiles for one device")
        return bool(self._model.jit_compile) and self._sums is None

    def _require_effect(self, step: str) -> None:
        """Raises a ConfigError for keys that a step of the model's own leaves without effect."""
        config, model = self._config, self._model
        losses, metrics = compiled_parts(model)
        applied = [wrapper.optimizer for wrapper in self._optimizers if wrapper.applied]
        named = names_optimizer(config) and model.optimizer is not None
        without = {
            "loss": config.loss is not None and not losses,
            "metrics": bool(config.metrics or config.weighted_metrics) and not metrics,
            "optimizer": named and not any(used is model.optimizer for used in applied),
            "train.clip": any(vars(config.train.clip).values()) and not applied,
            "train.accumulate": config.train.accumulate > 1 and not applied,
            "train.ema_decay": config.train.ema_decay is not None and not applied,
        }
        problems = [
            conflicts.WITHOUT_EFFECT.problem(f"{key} is set, and {step} does not use it", key)
            for key, is_without in without.items()
            if is_without
        ]
        if problems:
            raise ConfigError(*problems)

    def _begin_metrics(self) -> None:
        """Resets the metrics where an epoch begins, or before every step."""
        if self._epochs is None:
            self._model.reset_metrics()
            return

        def reset() -> tf.Tensor:
            self._model.reset_metrics()
            return tf.constant(True)

        begins = tf.equal(self._epochs.place(self._program.step), 0)
        tf.cond(begins, reset, lambda: tf.constant(False))

    def _learning_rate(self) -> tf.Tensor | None:
        if len(self._optimizers) != 1:
            return None
        if not getattr(self._optimizers[0].optimizer, "has_rate", True):
            return None
        rate = tf.cast(self._optimizers[0].optimizer.learning_rate, tf.float32)
        return rate if self.scale is None else rate * self.scale

    def _scalars(self, logs: Any, step: str) -> dict[str, tf.Tensor]:
        """Returns the scalars among what a step returns, by name.

        Raises:
          ConfigError: when a value is no number, or a metric of the configuration no scalar.
        """
        scalars = {}
        for name, tensor in _tensors(logs, step):
            keys = [f"{group}.{name}" for group in METRICS if name in getattr(self._config, group)]
            if tensor.shape.rank and keys:
                raise ConfigError.of(
                    f"{keys[0]}: {name} has the shape {tensor.shape}",
                    "only a scalar is recorded and compared",
                    "reduce it: keras.metrics.F1Score takes `average: macro`, for example",
                )
            if tensor.shape.num_elements() == 1:  # As in the logs of `fit`.
                dtype = tf.float64 if tensor.dtype == tf.float64 else tf.float32
                scalars[name] = tf.cast(tf.reshape(tensor, []), dtype)
            else:
                note = f"{name}: not recorded, because it has the shape {tensor.shape}"
                self.notes += [note] if note not in self.notes else []
        return scalars

    def _named(self, method: str) -> str:
        return f"{name_of(self._config.model)}.{method}"

    def _can_evaluate(self, spec: Any) -> bool:
        """Whether the model has a `test_step`, or a loss that it can compute."""
        model = self._model
        labelled = isinstance(spec, tuple) and len(spec) > 1
        if overrides(model, "test_step") or overrides(model, "compute_loss"):
            return True
        if not self._program.takes_steps:
            return True
        return model.compiled and model.loss is not None and labelled

    def _freeze(self) -> Iterator[str]:
        """Keeps the variables of frozen scaffolds from training, as Keras does; yields lines."""
        weights = keras_variables(self._model)
        self.frozen = {
            name
            for name, scaffold in self.scaffolds.items()
            if not scaffold.trainable and self.trainable.get(name)
        }
        norms = frozen_norms(self._model, self.scaffolds)
        for norm, stays in norms.items():
            norm.trainable = not stays
        for name in self.frozen:
            weights[name].trainable = False
        yield from statistics_notes(norms)

    def _policies(self) -> dict[int, TrainingPolicy]:
        weights = self._program.weights()
        return {
            id(weights[name]): TrainingPolicy(
                scaffold.freeze_until_step, scaffold.learning_rate_multiplier
            )
            for name, scaffold in self.scaffolds.items()
            if name in weights
        }

    def _require_trained(self) -> None:
        if not self._model.trainable_variables:
            raise ConfigError.of(
                "no variable is left to train",
                "all belong to layers with `trainable = False` or scaffolds with "
                "`trainable: false`",
                "let one of them train",
                tuple(self._config.scaffolds),
            )


def _owners(program: Program) -> dict[str, ScaffoldConfig]:
    """Returns name of a weight -> the scaffold that owns it."""
    config = program.config
    owners = owners_of_weights(
        program.weights(), config.scaffolds, config.restoration.collision, addresses(program.model)
    )
    return {name: config.scaffolds[owner] for name, owner in owners.items()}


def _tensors(logs: Any, step: str) -> Iterator[tuple[str, tf.Tensor]]:
    """Yields what a step returns, as Keras logs it: `{"loss": 0.5}`, or a mapping of mappings."""
    for name, value in logs.items() if isinstance(logs, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _tensors(value, step)
            continue
        try:
            tensor = tf.convert_to_tensor(value)
        except (TypeError, ValueError):
            tensor = None
        if tensor is None or tensor.dtype == tf.string:
            raise ConfigError.of(
                f"{step} returns {name!r}, which is not a number",
                f"it is of type {type(value).__name__}",
                "return numbers and tensors, and of a metric its result()",
            )
        yield name, tensor
