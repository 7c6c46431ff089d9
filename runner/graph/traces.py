"""Steps that are traced eagerly, as in `keras.Model.fit`, and imported into a session's graph.

User code runs where Keras runs it: outside of any graph. `Trace` records what it computes, and
`SessionCopy` adds the record to the default graph, whose variables and tables take the place of the
eager ones. So a step computes what `fit` computes, operation for operation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from runner.config.choices import StateClass
from runner.graph.captured import not_importable, tables_of
from runner.graph.replica import draw_others, seed_of
from runner.graph.stored_values import StoredValues
from runner.internals.tensorflow import (
    clear_local_devices,
    eager_mode,
    inner_graphs,
)
from runner.planning.variables import classify, owner_of
from runner.restoration.initialization import VALUE_OF_MODEL
from runner.session.fetches import operations_for

METRICS = "metrics/"
"""The begin of the names of the variables of metrics, which replicas add up."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\\/>-]")


class Trace:
    """A function traced eagerly.

    Args:
      function: maps a batch to nested tensors.
      *specs: the nested `tf.TypeSpec`s of its arguments.
      jit_compile: whether XLA compiles it, as `keras.Model.compile` asks for it.

    Attributes:
      graph: holds its operations, whose tracebacks lead to the user's code.
      outputs: what the function returns, with tensors of `graph`.
    """

    def __init__(
        self, function: Callable[..., Any], *specs: Any, jit_compile: bool = False
    ) -> None:
        if jit_compile:
            # XLA compiles calls of functions, which a trace by itself is not.
            function = partial(tf.function(function, autograph=False, jit_compile=True))
        traced = tf.function(function, autograph=False)
        self._function = traced.get_concrete_function(*specs)
        self.graph: tf.Graph = self._function.graph
        self.outputs: Any = self._function.structured_outputs

    def graphs(self) -> list[tf.Graph]:
        """Returns `graph` and the graphs of the functions that are traced within it."""
        return [self.graph, *inner_graphs(self.graph)]

    @property
    def captured(self) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Eager tensors, such as handles of variables, and their placeholders in `graph`."""
        return list(self.graph.captures)

    @property
    def variables(self) -> list[tf.Variable]:
        """The eager variables that the function reads or assigns, except by their handles alone.

        In the order in which it does, as some may share a name and be told apart by numbers.
        """
        order = {id(captured): index for index, (captured, _) in enumerate(self.captured)}
        variables = self.graph.variables  # TensorFlow has them in any order.
        return sorted(variables, key=lambda variable: order.get(id(variable.handle), len(order)))

    @property
    def arguments(self) -> list[tf.Tensor]:
        """The placeholders of the function's arguments."""
        return list(self.graph.inputs[: len(self.graph.inputs) - len(self.captured)])


@dataclass(frozen=True)
class Imported:
    """A trace in the default graph.

    Attributes:
      outputs: what its function returns; fetched alone, they run only what they need.
      done: runs after everything that it does.
      prefix: the name of its operations up to their name in the trace.
    """

    outputs: Any
    done: tf.Operation
    prefix: str


class SessionCopy:
    """The counterparts, in the default graph, of what eager traces capture.

    A variable starts with the value that its eager one has when the session initialises it.

    Args:
      named: name -> eager variable; the session's variables have the same names.
      layers: the Keras layers that may hold what traces capture, such as lookup tables.
      zeros: the names of variables whose eager values are zeros.
      local: the names of variables that checkpoints do not hold; every session initialises them.
      local_scope: places the latter.
      stored: has the values of the eager variables.
      replica: the number of the replica of the training step, counted over all tasks.
      first: the copy of the first replica of this task, whose values this one takes over at the
        start of every session; None for the first.

    Attributes:
      variables: name -> variable of the session, those that traces have captured.
      step: a further replica's copy of the global step.
    """

    step: tf.Variable

    def __init__(
        self,
        named: Mapping[str, tf.Variable],
        layers: Iterable[Any] = (),
        *,
        zeros: Collection[str] = (),
        local: Collection[str] = (),
        local_scope: Callable[[], AbstractContextManager[object]] = nullcontext,
        stored: StoredValues | None = None,
        replica: int = 0,
        first: SessionCopy | None = None,
    ) -> None:
        self._local_scope, self._stored = local_scope, stored or StoredValues()
        self._replica, self._first = replica, first
        self._eager = {id(variable.handle): (name, variable) for name, variable in named.items()}
        self._zeros, self._local = zeros, local
        self._layers = list(layers)
        self._tables = {id(table.resource_handle): table for table in tables_of(self._layers)}
        with eager_mode():
            self._contents = {
                key: [part.numpy() for part in table.export()]
                for key, table in self._tables.items()
            }
        self._tensors: dict[int, tf.Tensor] = {}
        self.variables: dict[str, tf.Variable] = {}

    def add(
        self,
        trace: Trace,
        arguments: Any = (),
        *,
        name: str,
        apart: Mapping[str, tf.Variable] | None = None,
        after: Sequence[tf.Tensor] = (),
    ) -> Imported:
        """Adds a trace to the default graph.

        Args:
          trace: the trace.
          arguments: nested tensors of the default graph in place of its arguments.
          name: the name scope of its operations.
          apart: name -> variable of the session that this trace uses in place of the shared one;
            variables that it lacks are added to it, see `copies`.
          after: tensors without which the trace changes nothing, such as the batch of a pass that
            ends: a seed would advance without one.

        Raises:
          ConfigError: when the trace captures something that no session can hold.
        """
        tensors = tf.nest.flatten(arguments, expand_composites=True)
        inputs = {
            placeholder.name: tensor
            for placeholder, tensor in zip(trace.arguments, tensors, strict=True)
        }
        for captured, placeholder in trace.captured:
            counterpart = self._counterpart(captured, apart or {})
            if after and captured.dtype == tf.resource:
                with tf.control_dependencies(after):
                    counterpart = tf.identity(counterpart)
            inputs[placeholder.name] = counterpart
        outputs = [output.name for output in trace.graph.outputs]
        last = [operation.name for operation in trace.graph.control_outputs]
        definition = trace.graph.as_graph_def()
        clear_local_devices(definition)
        draw_others(definition, self._replica)
        with tf.name_scope(name) as scope:
            elements = tf.import_graph_def(
                definition,
                input_map=inputs,
                return_elements=[*outputs, *last],
                name=scope,
            )
            done = tf.group(*elements[len(outputs) :], name="done")
        tensors = iter(elements)
        packed = tf.nest.pack_sequence_as(
            trace.outputs,
            [
                None if leaf is None else next(tensors)
                for leaf in tf.nest.flatten(trace.outputs, expand_composites=True)
            ],
            expand_composites=True,
        )
        return Imported(packed, done, scope)

    def add_without_batch(self, trace: Trace, spared: Collection[tf.Variable]) -> tf.Tensor:
        """Adds what a trace changes whatever its arguments are, and returns when it is done.

        That is what a step of `fit` does that finds no batch: a seed advances, an update counts.

        Args:
          trace: a trace that has been added.
          spared: eager variables that stay as they are.
        """
        handles = {id(variable.handle) for variable in spared}
        without = {argument.op for argument in trace.arguments}
        without |= {inner.op for captured, inner in trace.captured if id(captured) in handles}
        needed = {
            operation: operations_for([operation]) for operation in trace.graph.control_outputs
        }
        free = [operation for operation in needed if without.isdisjoint(needed[operation])]
        used = {needs.name for operation in free for needs in needed[operation]}
        inputs = {
            inner.name: tf.identity(self._counterpart(captured, {}))
            for captured, inner in trace.captured
            if inner.op.name in used
        }
        definition = trace.graph.as_graph_def()
        for node in [node for node in definition.node if node.name not in used]:
            definition.node.remove(node)
        clear_local_devices(definition)
        names = [operation.name for operation in free]
        done = tf.import_graph_def(definition, input_map=inputs, return_elements=names, name="")
        with tf.control_dependencies(done):
            return tf.constant(True)

    def copies(self, names: Iterable[str]) -> dict[str, tf.Variable]:
        """Adds further session variables for eager ones, which every session initialises."""
        by_name = dict(self._eager.values())
        return {name: self._added(name, by_name[name], local=True) for name in names}

    def bind(self, eager: tf.Variable, variable: tf.Variable) -> None:
        """Lets a variable of the session that exists already take the place of an eager one."""
        self._tensors[id(eager.handle)] = variable.handle

    def count_steps(self, eager: tf.Variable, global_step: tf.Variable) -> None:
        """Adds a copy of the global step, `step`, in place of an eager one."""
        with tf.control_dependencies(None):
            self.step = tf.compat.v1.Variable(
                global_step.read_value,
                trainable=False,
                collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
                name=self._in_scope("global_step"),
                dtype=global_step.dtype,
                use_resource=True,
            )
        self.bind(eager, self.step)

    def initializers(self) -> list[tf.Operation]:
        """Returns what takes the first replica's values over."""
        taken = [value for name, value in self.variables.items() if name not in self._local]
        return [variable.initializer for variable in (self.step, *taken)]

    def is_local(self, name: str) -> bool:
        """Whether checkpoints do not hold a variable."""
        return name in self._local

    def variable(self, name: str) -> tf.Variable:
        """Returns the session's variable of a name; adds it where no trace has captured it."""
        handle = next(key for key, (known, _) in self._eager.items() if known == name)
        self._bind(handle)
        return self.variables[name]

    def _counterpart(self, captured: tf.Tensor, apart: Mapping[str, tf.Variable]) -> tf.Tensor:
        key = id(captured)
        if key in self._eager and self._eager[key][0] in apart:
            return apart[self._eager[key][0]].handle
        if key not in self._tensors:
            if key in self._eager:
                self._bind(key)
            elif key in self._tables:
                self._tensors[key] = self._table(key)
            elif captured.dtype in (tf.resource, tf.variant):
                raise not_importable(captured, self._layers)
            else:
                # A constant would be folded into what surrounds it, with other roundings.
                value = captured.numpy()
                with tf.control_dependencies(None):
                    default = tf.compat.v1.placeholder_with_default(value, captured.shape)
                self._tensors[key] = default
        return self._tensors[key]

    def _bind(self, handle: int) -> None:
        if handle not in self._tensors:
            name, eager = self._eager[handle]
            local = name in self._local or self._first is not None
            variable = self._added(name, eager, local=local)
            self.variables[name], self._tensors[handle] = variable, variable.handle

    def _added(self, name: str, eager: tf.Variable, *, local: bool) -> tf.Variable:
        """Adds a variable to the graph."""
        keys = tf.compat.v1.GraphKeys
        # Not within the variable, which may be in another process: this one has the model.
        with tf.control_dependencies(None), tf.name_scope("initial_values"):
            if self._first is not None and name not in self._local:
                value = self._taken_over(name)
            else:
                value = self._initial_value(eager, zeros=name in self._zeros)
        with tf.control_dependencies(None), self._scope(name, local=local):
            return tf.compat.v1.Variable(
                value,
                trainable=eager.trainable and not local,
                collections=[keys.LOCAL_VARIABLES if local else keys.GLOBAL_VARIABLES],
                name=operation_name(name if self._first is None else self._in_scope(name)),
                dtype=eager.dtype,
                use_resource=True,
            )

    def _initial_value(self, eager: tf.Variable, *, zeros: bool) -> tf.Tensor:
        """Returns the value that an eager variable has when the operation runs."""
        if zeros:
            return tf.zeros(eager.shape, eager.dtype)
        # TensorFlow would call a function without state while it optimises the graph.
        tensor = tf.numpy_function(
            partial(self._stored.value, eager), [], eager.dtype, stateful=True, name=VALUE_OF_MODEL
        )
        return tf.ensure_shape(tensor, eager.shape)

    def _in_scope(self, name: str) -> str:
        return f"replica_{self._replica}/{name}"

    def _scope(self, name: str, *, local: bool) -> AbstractContextManager[object]:
        """Places a variable: a slot with its weight, as one operation may update both."""
        weight = owner_of(name.rpartition("/")[0], self.variables)
        if local or weight is None or not self.variables[weight].device:
            return self._local_scope() if local else nullcontext()
        beside: AbstractContextManager[object] = tf.device(self.variables[weight].device)
        return beside

    def _taken_over(self, name: str) -> tf.Tensor:
        """Returns the first replica's value, and of a seed another one."""
        assert self._first is not None
        variable = self._first.variable(name)
        value = variable.read_value()
        if name.startswith(METRICS):  # The first replica holds the sum.
            return tf.zeros_like(value)
        if classify(name, model=True) is StateClass.random_state:
            return seed_of(self._replica, seed_of(self._first._replica, value))
        return value

    def _table(self, key: int) -> tf.Tensor:
        table, (keys, values) = self._tables[key], self._contents[key]
        types = {"key_dtype": table.key_dtype, "value_dtype": table.value_dtype}
        with tf.control_dependencies(None), tf.name_scope("tables"):
            if isinstance(table, tf.lookup.StaticHashTable):
                handle = tf.raw_ops.HashTableV2(**types)
                fill = tf.raw_ops.InitializeTableV2(table_handle=handle, keys=keys, values=values)
            else:
                handle = tf.raw_ops.MutableHashTableV2(**types)
                fill = tf.raw_ops.LookupTableImportV2(table_handle=handle, keys=keys, values=values)
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, fill)
        return handle


def operation_name(name: str) -> str:
    """Returns a name that TensorFlow takes for an operation."""
    allowed = _NOT_IN_NAMES.sub("_", name)
    return allowed if allowed[:1].isalnum() or allowed[:1] == "." else f".{allowed}"
