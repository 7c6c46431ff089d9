"""Data as `keras.Model.fit` takes them: arrays, datasets, `PyDataset`s, generator functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from runner.errors import ConfigError
from runner.inputs.generator import GeneratorData, GivenGenerator, dtype_of, spec_of
from runner.inputs.slices import Slices, composite, sliced
from runner.internals.keras import is_loader, loaded_batches

_Fetch: TypeAlias = Callable[[NDArray[np.int64]], Sequence[Any]]

_BATCH_SIZE = 32


@dataclass(frozen=True)
class FitData:
    """Data that `keras.Model.fit` takes, with its arguments; one pass, to be counted by epochs.

    A resumed run continues with the next batch, in the order that it would have had. A `PyDataset`
    that shuffles itself in `on_epoch_end` has another order then. A generator object gives its
    batches once, and another process begins it again.

    Attributes:
      x: features: arrays, data frames, sparse or ragged tensors [count, ...], alone or nested in
        tuples and mappings; or batches with their labels: a `tf.data.Dataset`, a
        `keras.utils.PyDataset`, or a `DataLoader` of PyTorch or Grain. Or a function that returns
        one of these, a tuple `(x, y)` or `(x, y, sample_weight)` of arrays, or a generator of
        batches; or a generator. Arrays of float64 become float32, as in `fit`. Sparse and ragged
        tensors are part of the graph, 2 GB at most, and of checkpoints if they are shuffled.
      y: labels, likewise; None where `x` has them.
      sample_weight: weights of the examples, [count].
      batch_size: examples per batch of arrays, by default 32.
      validation_data: `(x, y)`, `(x, y, sample_weight)`, or batches or a function as in `x`. By
        default the training data.
      validation_split: the part of the arrays, at their end, that is for validation, unless
        `validation_data` are.
      validation_batch_size: examples per batch of validation, by default `batch_size`.
      validation_steps: how many batches of validation to take; by default all.
      shuffle: whether arrays and a `PyDataset` come in another order in every epoch.
      seed: decides the order.

    Raises:
      ConfigError: from the methods, when the data are of no such kind, or of several lengths.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None
    batch_size: int | None = None
    validation_data: Any = None
    validation_split: float = 0.0
    validation_batch_size: int | None = None
    validation_steps: int | None = None
    shuffle: bool = True
    seed: int = 0

    def train(self) -> tf.data.Dataset:
        """Returns one pass over the training data."""
        return self._batches(self._training, self.seed if self.shuffle else None)

    def validation(self) -> tf.data.Dataset:
        """Returns one pass over the validation data, in their order."""
        batches = self._batches(self._held_out, None, one_pass=True)
        return batches if self.validation_steps is None else batches.take(self.validation_steps)

    def test(self) -> tf.data.Dataset:
        """Returns the validation data."""
        return self.validation()

    def sizes(self) -> dict[str, int]:
        """Returns split -> number of examples, of splits in arrays."""
        held_out = self._held_out
        count = None if _has_batches(held_out) else _count(held_out)
        if count is not None and self.validation_steps is not None:
            size = self.validation_batch_size or self.batch_size or _BATCH_SIZE
            count = min(count, self.validation_steps * size)
        training = None if _has_batches(self._training) else _count(self._training)
        counts = {"train": training, "validation": count, "test": count}
        return {name: number for name, number in counts.items() if number is not None}

    def steps(self) -> int | None:
        """Returns the number of training batches; None where it is not known."""
        if _has_batches(self._training):
            if isinstance(self._training, tf.data.Dataset):
                return max(int(self._training.cardinality()), 0) or None
            if isinstance(self._training, keras.utils.PyDataset):
                batches: int | None = self._training.num_batches
                return batches
            length: int | None = self._training.length
            return length
        return -(-_count(self._training) // (self.batch_size or _BATCH_SIZE))

    @cached_property
    def _whole(self) -> Any:
        return _source(self.x, self.y, self.sample_weight)

    @cached_property
    def _training(self) -> Any:
        if not self._splits:
            return self._whole
        return tf.nest.map_structure(lambda array: array[: self._training_count], self._whole)

    @cached_property
    def _held_out(self) -> Any:
        if self._splits:
            return tf.nest.map_structure(lambda array: array[self._training_count :], self._whole)
        data = self.validation_data
        if data is None:
            return self._whole
        if not isinstance(data, tuple | list):
            return _source(data)
        if len(data) not in (1, 2, 3):
            raise ConfigError.of(
                f"data: validation_data has {len(data)} parts",
                "it must be (x, y) or (x, y, sample_weight), or batches",
            )
        return _source(*data)

    @property
    def _splits(self) -> bool:
        return bool(self.validation_split) and self.validation_data is None

    @property
    def _training_count(self) -> int:
        if _has_batches(self._whole):
            raise ConfigError.of(
                "data: validation_split is set, and x is batches",
                "as in fit, only arrays are divided",
                "give validation_data; of a tf.data.Dataset, x=data.skip(N) and "
                "validation_data=data.take(N)",
            )
        return math.floor(_count(self._whole) * (1 - self.validation_split))

    def _batches(self, data: Any, seed: int | None, *, one_pass: bool = False) -> tf.data.Dataset:
        if isinstance(data, tf.data.Dataset):
            return data
        if isinstance(data, keras.utils.PyDataset):
            return _of_sequence(data, seed, one_pass=one_pass)
        if isinstance(data, _Generators):
            generator = data.function
            if one_pass and isinstance(generator, GivenGenerator):
                spec = spec_of(generator.first)
                return tf.data.Dataset.from_generator(generator.following, output_signature=spec)
            generators = GeneratorData(data.function, data.function, data.function)
            return generators.validation() if one_pass else generators.train()
        size = (self.validation_batch_size if one_pass else None) or self.batch_size
        return _of_arrays(data, size or _BATCH_SIZE, seed)


@dataclass(frozen=True)
class _Generators:
    """Batches of the generators that a function returns."""

    function: Callable[[], Iterator[Any]]

    @property
    def length(self) -> int | None:
        """How many there are, of a generator object that has been read."""
        return self.function.length if isinstance(self.function, GivenGenerator) else None


def _source(x: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """Returns batches, or nested arrays."""
    if isinstance(x, GivenGenerator):
        return _Generators(x)
    if callable(x) and not _has_batches(x):
        loaded = x()
        if isinstance(loaded, Iterator):
            return _Generators(x)
        return _source(*loaded) if isinstance(loaded, tuple) else _source(loaded)
    if isinstance(x, Iterator):
        return _Generators(GivenGenerator(x))
    if is_loader(x):
        return loaded_batches(x)
    return x if _has_batches(x) else _together(x, y, sample_weight)


def _has_batches(data: Any) -> bool:
    return isinstance(data, tf.data.Dataset | keras.utils.PyDataset | _Generators)


def _count(arrays: Any) -> int:
    return len(tf.nest.flatten(arrays)[0])


def refuse_beside_batches(x: Any, **beside: Any) -> None:
    """Refuses what `fit` refuses beside batches.

    Args:
      x: features or batches.
      **beside: arguments that only go with arrays.

    Raises:
      ConfigError: when one is set, and `x` is batches.
    """
    is_batches = _has_batches(x) or isinstance(x, Iterator | GivenGenerator)
    for name, value in beside.items():
        if is_batches and value is not None:
            kind = type(x).__name__ if _has_batches(x) else "generator"
            kind = "tf.data.Dataset" if isinstance(x, tf.data.Dataset) else kind
            parts = {"y": "(x, y)", "sample_weight": "(x, y, sample_weight)"}.get(name)
            raise ConfigError.of(
                f"data: {name} is set, and x is a {kind}",
                f"as in fit, {name} goes with arrays",
                f"let the batches be {parts}" if parts else "let the batches have sample weights",
            )


def _together(x: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """Returns nested arrays of equal length: features, or a tuple of them, labels and weights."""
    parts = (x,) if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)
    arrays = tuple(_as_arrays(part) for part in parts)
    lengths = {int(array.shape[0]) for array in tf.nest.flatten(arrays)}
    if len(lengths) != 1:
        listed = ", ".join(map(str, sorted(lengths)))
        state = f"data: the arrays have {listed} examples"
        raise ConfigError.of(state, "there must be as many labels and weights as features")
    # As in `fit`: a tuple alone would be features, labels and weights.
    return sliced(arrays[0] if y is None and not isinstance(arrays[0], tuple) else arrays)


def _as_arrays(part: Any) -> Any:
    """Returns nested arrays; lists become tuples, because `tf.data` takes a list for a tensor."""
    if isinstance(part, dict | list | tuple) and not part:
        raise ConfigError.of("the data are empty", f"x is {part!r}", "give examples")
    if isinstance(part, dict):
        return {name: _as_arrays(item) for name, item in part.items()}
    if isinstance(part, tuple) or (isinstance(part, list) and hasattr(part[0], "shape")):
        return tuple(map(_as_arrays, part))
    if (tensor := composite(part)) is not None:
        return tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor
    array = np.asarray(part)
    if array.ndim == 0:
        kind = type(part).__name__
        cause = "arrays, a tf.data.Dataset, a PyDataset, a DataLoader or a generator fit"
        raise ConfigError.of(f"data: {kind} is no data", cause)
    # A copy only where the type differs: there may be gigabytes.
    return array.astype(keras.config.floatx(), copy=False) if array.dtype.kind == "f" else array


def _of_arrays(arrays: Any, batch_size: int, seed: int | None) -> tf.data.Dataset:
    count = _count(arrays)
    if not count:
        raise ConfigError.of(
            "the data are empty",
            "the arrays have no example, or validation_split leaves none",
            "give examples, or a smaller validation_split",
        )
    if isinstance(arrays, Slices):
        return arrays.batches(batch_size, seed)
    flat = tf.nest.flatten(arrays)
    # As in `fit`, where the shape decides how TensorFlow adds up sparse gradients.
    size = None if count % batch_size else batch_size
    specs = [tf.TensorSpec([size, *array.shape[1:]], dtype_of(array)) for array in flat]

    def look_up(indices: NDArray[np.int64]) -> Sequence[Any]:
        return [array[indices] for array in flat]

    order = _batches_in_order(count, batch_size, seed)
    return _fetched(order, look_up, tf.nest.pack_sequence_as(arrays, specs))


def _of_sequence(batches: Any, seed: int | None, *, one_pass: bool) -> tf.data.Dataset:
    count = batches.num_batches
    if count == 0:
        raise ConfigError.of("data: the PyDataset has length 0", "there is no batch")
    seen = [_as_batch(batches[index]) for index in range(min(count or 2, 2))]

    # As in `fit`, once before the first epoch of a training, and before every evaluation.
    begins = [batches.on_epoch_end]

    def fetch(place: NDArray[np.int64]) -> Sequence[Any]:
        index, position = place
        if begins:
            begins.pop()()
        if position == 0:
            batches.on_epoch_begin()
        arrays = [np.asarray(part) for part in tf.nest.flatten(_as_batch(batches[int(index)]))]
        if count is not None and position == count - 1:
            batches.on_epoch_end()
            if one_pass:
                begins.append(batches.on_epoch_end)
        return [
            array.astype(spec.dtype.as_numpy_dtype)
            for array, spec in zip(arrays, tf.nest.flatten(specs), strict=True)
        ]

    specs = spec_of([tf.nest.map_structure(_as_arrays, batch) for batch in seen])
    # Not `enumerate`: TensorFlow restores a shuffle in a `zip` with another order of later epochs.
    places = _in_order(count, seed).scan(
        tf.constant(0, tf.int64), lambda place, index: (place + 1, tf.stack([index, place]))
    )
    options = tf.data.Options()
    # An epoch begins and ends around its batches.
    options.experimental_optimization.map_parallelization = False
    return _fetched(places, fetch, specs).with_options(options)


def _as_batch(batch: Any) -> Any:
    return tuple(batch) if isinstance(batch, list) else batch


def _batches_in_order(count: int, batch_size: int, seed: int | None) -> tf.data.Dataset:
    """Returns the numbers below `count` in batches, in an order by the seed.

    `tf.data.Dataset.shuffle` handles each number by itself, and checkpoints hold its buffer: with
    786,432 numbers, two epochs took 41 s of processor time in place of 6 s, and 900 MB more.
    """
    begins = tf.data.Dataset.range(0, count, batch_size)
    if seed is None:
        return begins.map(lambda begin: tf.range(begin, tf.minimum(begin + batch_size, count)))

    def shuffled(draw: tf.Tensor) -> tf.data.Dataset:
        numbers = tf.range(count, dtype=tf.int64)
        order = tf.random.experimental.stateless_shuffle(numbers, tf.stack([seed, draw]))
        return begins.map(lambda begin: order[begin : begin + batch_size])

    draws = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)
    length = tf.data.experimental.assert_cardinality(-(-count // batch_size))
    return draws.take(1).flat_map(shuffled).apply(length)


def _in_order(count: int | None, seed: int | None) -> tf.data.Dataset:
    """Returns the numbers below `count`, in an order by the seed, or all numbers."""
    if count is None:
        return tf.data.Dataset.counter()
    order = tf.data.Dataset.range(count)
    return order if seed is None else order.shuffle(count, seed=seed)


def _fetched(order: tf.data.Dataset, fetch: _Fetch, specs: Any) -> tf.data.Dataset:
    """Returns the batches that a function of NumPy returns for the elements of `order`."""
    flat = tf.nest.flatten(specs)

    def batch(element: tf.Tensor) -> Any:
        # As constants of the graph, arrays could not exceed its limit of 2 GB.
        tensors = tf.numpy_function(fetch, [element], [spec.dtype for spec in flat], stateful=False)
        shaped = [
            tf.ensure_shape(tensor, spec.shape) for tensor, spec in zip(tensors, flat, strict=True)
        ]
        return tf.nest.pack_sequence_as(specs, shaped)

    return order.map(batch)


def given_data(
    data: Mapping[str, Any], steps_per_epoch: int | None, *, class_weight: bool
) -> tuple[dict[str, Any], int | None]:
    """Returns arguments of `FitData` from arguments of `fit`, and the number of training batches.

    Generator objects become functions, and are read to their end where nothing else tells how many
    batches they have. The number is None where it is not known, or there is no end.

    Args:
      data: the arguments of `fit` that are about data.
      steps_per_epoch: likewise.
      class_weight: whether classes have weights.

    Raises:
      ConfigError: when `fit` refuses them too, or they are no data.
    """
    arguments = dict(data)
    arguments["x"] = _counted(arguments["x"], "steps_per_epoch", steps_per_epoch)
    if "validation_data" in arguments:
        steps = arguments.get("validation_steps")
        arguments["validation_data"] = _counted(
            arguments["validation_data"], "validation_steps", steps
        )
    refuse_beside_batches(
        arguments["x"], y=arguments.get("y"), sample_weight=arguments.get("sample_weight")
    )
    if class_weight and (
        isinstance(arguments["x"], GivenGenerator) or "sample_weight" in arguments
    ):
        beside = "sample_weight" if "sample_weight" in arguments else "a generator"
        raise ConfigError.of(
            f"class_weight is set beside {beside}",
            "as in fit, examples have weights by their class or of their own",
            "let sample weights be all the weights",
        )
    return arguments, FitData(**arguments).steps()


def _counted(data: Any, argument: str, steps: int | None) -> Any:
    if isinstance(data, Iterator):
        data = GivenGenerator(data)
        if steps is None:
            data.count(argument)
    return loaded_batches(data) if is_loader(data) else data
