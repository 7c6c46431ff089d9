"""Assigns values to variables without a run of the session that knows them all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

# No public module has these messages, which the public `tf.io.serialize_tensor` writes.
from tensorflow.core.framework import resource_handle_pb2, tensor_pb2, types_pb2

tf1 = tf.compat.v1

# The shared name of variables that belong to nobody else, whose handles are all different.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"


class Assigner:
    """Assigns values to the variables of one graph, in any of its sessions.

    A run over thousands of variables costs up to a millisecond for each of them, nearly all of it
    the session's graph optimiser. So `build` adds one assignment for each dtype, to which both the
    variable and the value are fed, and which is run for one variable after the other. That works
    for resource variables in a local session whose only device is the processor; `Assignments`
    assigns to all others by running their initializers.
    """

    def __init__(self, variables: Iterable[tf.Variable]) -> None:
        """Stores the variables."""
        self._variables = tuple(variables)
        self._names: dict[str, tuple[str, str]] | None = None
        self._operations: dict[tf.DType, tuple[tf.Operation, tf.Tensor, tf.Tensor]] = {}

    def build(self) -> None:
        """Adds the operations to the default graph, once."""
        if self._names is not None:
            return
        self._names = {
            each.op.name: name
            for each in self._variables
            if (name := _shared_name(each)) is not None
        }
        dtypes = {
            each.dtype.base_dtype: None for each in self._variables if each.op.name in self._names
        }
        with tf.name_scope("assign_fed"):
            for dtype in dtypes:
                handle, value = tf1.placeholder(tf.string, []), tf1.placeholder(dtype)
                assign = tf.raw_ops.AssignVariableOp(
                    resource=tf.io.parse_tensor(handle, tf.resource), value=value
                )
                self._operations[dtype] = (assign, handle, value)

    def bind(self, session: tf.compat.v1.Session) -> Assignments:
        """Returns what assigns in a session; not to be kept longer than it is needed.

        Raises:
          RuntimeError: when `build` was not called.
        """
        if self._names is None:
            raise RuntimeError("build must be called before the graph is finalised")
        device = only_device(session)
        return Assignments(session, device, {} if device is None else self._names, self._operations)


class Assignments:
    """Assigns values to variables in one session."""

    def __init__(
        self,
        session: tf.compat.v1.Session,
        device: str | None,
        names: Mapping[str, tuple[str, str]],
        operations: Mapping[tf.DType, tuple[tf.Operation, tf.Tensor, tf.Tensor]],
    ) -> None:
        """Stores the arguments.

        Args:
          session: the session.
          device: the name of its only device, on which the named variables are.
          names: name of a variable's operation -> container and shared name of its resource.
          operations: dtype -> the operation that assigns, its variable and its value.
        """
        self._session, self._device = session, device
        self._names, self._operations = names, operations
        self._calls: dict[tf.DType, Callable[..., Any]] = {}

    @property
    def direct(self) -> bool:
        """Whether all variables that have a name of their own are assigned to singly."""
        return self._device is not None

    def singly(self, variable: tf.Variable) -> bool:
        """Returns whether the variable is assigned to in a run of its own, of microseconds."""
        return variable.op.name in self._names

    def assign(self, values: Sequence[tuple[tf.Variable, NDArray[Any]]]) -> None:
        """Assigns values to variables.

        Args:
          values: variables and values of their shapes and dtypes, whose memory becomes that of the
            variables: it must be nobody else's.
        """
        others = []
        for variable, value in values:
            name = self._names.get(variable.op.name)
            if name is None:
                others.append((variable, value))
            else:
                self._call(variable.dtype.base_dtype)(self._handle(*name), value)
        if others:
            # No operation is added for it, and what computes the initial values does not run.
            self._session.run(
                [variable.initializer for variable, _ in others],
                {initial_value(variable): value for variable, value in others},
            )

    def _call(self, dtype: tf.DType) -> Callable[..., Any]:
        if dtype not in self._calls:
            operation, *feeds = self._operations[dtype]
            self._calls[dtype] = self._session.make_callable(operation, feeds)
        return self._calls[dtype]

    def _handle(self, container: str, name: str) -> bytes:
        handle = resource_handle_pb2.ResourceHandleProto()
        handle.CopyFrom(_example())
        handle.device, handle.name = self._device, name
        handle.container = container or handle.container
        return _serialized(handle)


def initial_value(variable: tf.Variable) -> tf.Tensor:
    """Returns the tensor that the variable's initializer assigns."""
    return variable.initializer.inputs[1]


def on_processor(variable: tf.Variable) -> bool:
    """Returns whether values are fed to the variable singly, as far as a graph tells.

    Not where there are other devices than the processor, or the variable is in another process.
    """
    place = tf.DeviceSpec.from_string(variable.device or "")
    if place.job not in (None, "localhost") or place.device_type not in (None, "CPU"):
        return False
    if _shared_name(variable) is None:
        return False
    return all(each.device_type == "CPU" for each in tf.config.list_physical_devices())


def only_device(session: tf.compat.v1.Session) -> str | None:
    """Returns the name of the processor of a local session, None where there are more devices."""
    if session.sess_str:
        return None
    devices = session.list_devices()
    if [each.device_type for each in devices] != ["CPU"]:
        return None
    return str(devices[0].name)


def _shared_name(variable: tf.Variable) -> tuple[str, str] | None:
    """Returns container and name of the variable's resource; None where it has no name."""
    if not hasattr(variable, "handle") or variable.handle.op.type != "VarHandleOp":
        return None
    op = variable.handle.op
    container, name = (op.get_attr(each).decode() for each in ("container", "shared_name"))
    return None if name in ("", _ANONYMOUS) else (container, name)


@functools.cache
def _example() -> Any:
    """Returns the handle of some variable: those of others differ in device and name only."""
    config = tf1.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf1.Session(config=config) as session:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="v")
        serialized = session.run(tf.io.serialize_tensor(handle))
    content = tensor_pb2.TensorProto.FromString(serialized).tensor_content
    # The lengths of the tensor's elements, here one of less than 128 bytes, precede them.
    example = resource_handle_pb2.ResourceHandleProto.FromString(content[1:])
    example.ClearField("dtypes_and_shapes")
    return example


def _serialized(handle: Any) -> bytes:
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_RESOURCE, resource_handle_val=[handle])
    return bytes(tensor.SerializeToString())
