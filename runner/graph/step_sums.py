"""Sums over the replicas of a training step, by TensorFlow's collectives, before it is traced.

A step is traced once, and imported for each device of each task. Every replica computes its part of
a batch. What the trace sums is the same in all of them afterwards: gradients, metrics, logged
values, and the moments of batch norm where they are synchronised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import tensorflow as tf

from runner.config import conflicts

# Small tensors share a message; larger ones would be copied for nothing.
PACK_BYTES = 16 * 2**20
_GROUP = 1

# Maps a vector to another of the same size and type.
Collective: TypeAlias = Callable[[tf.Tensor], tf.Tensor]


class StepSums:
    """The sums of a step over its replicas; each replica's trace has the same.

    Args:
      count: how many replicas there are, in all tasks.

    Attributes:
      share: this replica's share of the examples, a float64 scalar; 0 where it repeats an example
        because there are fewer than replicas. None where gradients are weighted already.
      index: which replica this is, an int32 scalar.
      bytes: how many bytes of gradients a replica gives to the sums of a step.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        # The `id` of a metric's variable -> TensorFlow's variable.
        self._variables: dict[int, tf.Variable] = {}
        self.begin(None, None)

    def begin(self, share: tf.Tensor | None, index: tf.Tensor | None) -> None:
        """Begins a trace."""
        self.share, self.index, self.bytes = share, index, 0
        self._key = 0
        self._last: tf.Operation | None = None
        self._summed: dict[int, tf.Tensor] = {}
        self._results: list[tf.Tensor] = []

    @property
    def has_examples(self) -> tf.Tensor:
        """Whether this replica has any of the examples."""
        assert self.share is not None  # Metrics and layers are called for a batch.
        return self.share > 0

    def weighted(self, gradients: Sequence[Any]) -> list[Any]:
        """Returns gradients times the share of the examples."""
        return [None if gradient is None else self._weighted(gradient) for gradient in gradients]

    def of_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the sums of weighted gradients; sparse ones become dense."""
        dense = {
            index: tf.reshape(tf.convert_to_tensor(gradient), variables[index].shape)
            for index, gradient in enumerate(self.weighted(gradients))
            if gradient is not None
        }
        self.bytes += sum(map(_size, dense.values()))
        sums = dict(zip(dense, in_packs([*dense.values()], self._sum), strict=True))
        return [sums.get(index) for index in range(len(gradients))]

    def of_values(self, values: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the means of logged values over all examples; results of metrics are there."""
        others = {
            name: value
            for name, value in values.items()
            if not any(value is result for result in self._results)
        }
        if not others:
            return values
        vector = tf.stack([self._weighted(tf.cast(value, tf.float64)) for value in others.values()])
        means = tf.unstack(self._sum(vector), len(others))
        return values | {
            name: tf.cast(mean, others[name].dtype)
            for name, mean in zip(others, means, strict=True)
        }

    def gathered(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the values of all replicas [replica, ...], which gradients go back through."""
        slot = tf.one_hot(self.index, self.count, dtype=value.dtype)
        rows = tf.reshape(slot, [-1, *[1] * value.shape.rank]) * value[tf.newaxis]
        return self._differentiable(rows)

    @contextmanager
    def of_metrics(self, metrics: Iterable[Any]) -> Iterator[None]:
        """Lets metrics sum their state over the replicas before they compute results.

        The state of a metric is the sum of the replicas' variables at any time. A result begins
        with that sum, which the first replica then keeps, and the others keep zeros.

        Raises:
          ConfigError: when a metric has state that is no sum.
        """
        methods = {
            "update_state": self._update,
            "result": self._result,
            "reset_state": self._reset,
        }
        wrapped = list({id(metric): metric for metric in metrics}.values())
        self._variables = {}
        for metric in wrapped:
            _require_sums(metric)
            self._variables |= {id(part): part.value for part in metric.variables}
            for name, method in methods.items():
                setattr(metric, name, partial(method, metric, getattr(metric, name)))
        try:
            yield
        finally:
            for metric in wrapped:
                for name in methods:
                    delattr(metric, name)

    def finish_metrics(self) -> None:
        """Sums the metrics of which the step has read no result since their last update."""
        self._sum_metrics()

    def _update(
        self, metric: Any, original: Callable[..., Any], *values: Any, **options: Any
    ) -> Any:
        variables = self._variables_of(metric)
        before = [variable.read_value() for variable in variables]
        returned = original(*values, **options)
        for variable, old in zip(variables, before, strict=True):
            variable.assign(tf.where(self.has_examples, variable.read_value(), old))
            self._summed.pop(id(variable), None)
        return returned

    def _reset(self, metric: Any, original: Callable[..., Any]) -> None:
        original()
        for variable in self._variables_of(metric):
            self._summed.pop(id(variable), None)

    def _result(self, metric: Any, original: Callable[..., Any]) -> Any:
        variables = self._variables_of(metric)
        if not all(self._is_summed(variable) for variable in variables):
            self._sum_metrics()
        sums = [self._summed[id(variable)] for variable in variables]
        for variable, value in zip(variables, sums, strict=True):
            variable.assign(value)
        result = tf.nest.map_structure(tf.convert_to_tensor, original())
        for variable, value in zip(variables, sums, strict=True):
            self._keep(variable, value)
        self._results += tf.nest.flatten(result)
        return result

    def _variables_of(self, metric: Any) -> list[tf.Variable]:
        # In a layer's call, `keras.Variable.value` may be a value of another type.
        known = [self._variables.get(id(variable)) for variable in metric.variables]
        return [variable for variable in known if variable is not None]

    def _is_summed(self, variable: tf.Variable) -> bool:
        """Whether the sum of a variable is known in the present graph."""
        summed = self._summed.get(id(variable))
        return summed is not None and summed.graph is tf.compat.v1.get_default_graph()

    def _sum_metrics(self) -> None:
        """Sums the variables that have changed since they were summed in the present graph."""
        changed = [
            variable for variable in self._variables.values() if not self._is_summed(variable)
        ]
        # Counts are exact in float64, and kernels for GPUs have no integers.
        values = [tf.cast(variable.read_value(), tf.float64) for variable in changed]
        for variable, value in zip(changed, in_packs(values, self._sum), strict=True):
            self._summed[id(variable)] = tf.cast(value, variable.dtype)
            self._keep(variable, self._summed[id(variable)])

    def _keep(self, variable: tf.Variable, value: tf.Tensor) -> None:
        variable.assign(tf.where(tf.equal(self.index, 0), value, tf.zeros_like(value)))

    def _weighted(self, value: Any) -> Any:
        if self.share is None:
            return value
        if isinstance(value, tf.IndexedSlices):
            return tf.IndexedSlices(self._weighted(value.values), value.indices, value.dense_shape)
        # NaN of a repeated example counts as little as any other value.
        return tf.math.multiply_no_nan(value, tf.cast(self.share, value.dtype))

    def _differentiable(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the sum of values over the replicas.

        A replica's gradients follow from its loss, and are weighted by its share later: here they
        are weighted by the shares of all, over its own.
        """

        @tf.custom_gradient
        def summed(part: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                total = self._differentiable(self._weighted(upstream))
                return tf.math.divide_no_nan(total, tf.cast(self.share, total.dtype))

            flat = self._sum(tf.reshape(part, [part.shape.num_elements()]))
            return tf.reshape(flat, part.shape), gradient

        result: tf.Tensor = summed(value)
        return result

    def _sum(self, values: tf.Tensor) -> tf.Tensor:
        """Sums a vector, after the sums before it: all replicas need the same order."""
        self._key += 1
        last = self._last
        before = [last] if last is not None and last.graph is values.graph else []
        with tf.control_dependencies(before):
            result = tf.raw_ops.CollectiveReduceV2(
                input=values,
                group_size=self.count,
                group_key=_GROUP,
                instance_key=self._key,
                ordering_token=[],
                merge_op="Add",
                final_op="Id",
            )
        self._last = result.op
        return result


def in_packs(values: Sequence[tf.Tensor], collective: Collective) -> list[tf.Tensor]:
    """Returns the results of a collective for tensors of static shapes, several at a time.

    The tensors have the same shapes and types in all replicas.
    """
    results: dict[int, tf.Tensor] = {}
    for pack in _packs(values):
        flat = tf.concat([tf.reshape(values[index], [-1]) for index in pack], 0)
        sizes = [values[index].shape.num_elements() for index in pack]
        result = collective(tf.ensure_shape(flat, [sum(sizes)]))
        parts = tf.split(tf.reshape(result, [sum(sizes)]), sizes)
        for index, part in zip(pack, parts, strict=True):
            results[index] = tf.reshape(part, values[index].shape)
    return [results[index] for index in range(len(values))]


def _packs(values: Sequence[tf.Tensor]) -> Iterator[list[int]]:
    """Yields the indices of tensors of one type, which are small together or one alone."""
    by_type: dict[tf.DType, list[int]] = {}
    for index, value in enumerate(values):
        by_type.setdefault(value.dtype, []).append(index)
    for indices in by_type.values():
        pack: list[int] = []
        size = 0
        for index in indices:
            if pack and size + _size(values[index]) > PACK_BYTES:
                yield pack
                pack, size = [], 0
            pack.append(index)
            size += _size(values[index])
        yield pack


def _size(value: tf.Tensor) -> int:
    return int(value.shape.num_elements()) * int(value.dtype.size)


def _require_sums(metric: Any) -> None:
    for variable in metric.variables:
        aggregation = getattr(variable, "aggregation", "sum")
        if aggregation != "sum":
            raise conflicts.UNSUMMED_METRIC.error(
                f"the metric variable {variable.path} has the aggregation {aggregation!r}, and "
                "several devices or tasks train"
            )
