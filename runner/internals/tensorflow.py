"""The private API of TensorFlow that the rooms use: what for, and why nothing public serves.

`tests/unit/internals/test_tensorflow_internals.py` fails when TensorFlow changes any of it.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

# The entries of a checkpoint's index; no public module offers these messages.
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto as TensorShapeProto
from tensorflow.core.framework.tensor_slice_pb2 import TensorSliceProto as TensorSliceProto
from tensorflow.core.protobuf.config_pb2 import CallableOptions
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto as BundleEntryProto

# The only description of the objects in a checkpoint; no public module offers this message.
from tensorflow.core.protobuf.trackable_object_graph_pb2 import (
    TrackableObjectGraph as TrackableObjectGraph,
)
from tensorflow.core.util.saved_tensor_slice_pb2 import SavedTensorSlices as SavedTensorSlices
from tensorflow.python.distribute import distribute_coordinator_context
from tensorflow.python.eager import context

# Whether TensorFlow refuses what is not deterministic, as a program or TF_DETERMINISTIC_OPS asks
# for; no public module tells.
from tensorflow.python.framework.config import (
    is_op_determinism_enabled as is_op_determinism_enabled,
)

# Has the gradients of `tf.custom_gradient`, which nothing public takes out of it.
from tensorflow.python.framework.ops import gradient_registry as gradient_registry

# Names the signatures of an export as `tf.estimator` did; no public module offers it any more.
from tensorflow.python.saved_model.model_utils import (
    build_all_signature_defs as build_all_signature_defs,
)

# Leaves a graph for a block within it; no public module offers it.
eager_mode = tf.__internal__.eager_context.eager_mode

_Session: TypeAlias = tf.compat.v1.Session
# Takes an array for each fed tensor and returns the values of the fetched tensors.
Step: TypeAlias = Callable[..., list[Any]]


def worker_context() -> Any:
    """Returns what TensorFlow's distribute coordinator decides for this thread; None without one.

    `tf.compat.v1.train.MonitoredTrainingSession` asks the same; nothing public answers it.
    """
    return distribute_coordinator_context.get_current_worker_context()


def servers_in_process() -> list[tf.distribute.Server]:
    """Returns the servers that a program has started in this process.

    Neither TensorFlow nor a session of a server tells which tasks belong to its cluster.
    """
    return [thing for thing in gc.get_objects() if isinstance(thing, tf.distribute.Server)]


def function_nodes(graph: tf.Graph, name: str) -> Sequence[tf.compat.v1.NodeDef]:
    """Returns the nodes of a function that a graph calls; empty for a function it does not hold.

    The public way, `Graph.as_graph_def`, serialises the whole graph with all its constants.
    """
    function = graph._get_function(name)
    return function.cached_definition.node_def if function is not None else ()


def free(variable: tf.Variable) -> None:
    """Frees the memory of an eager variable, which has no value until `give` gives it one.

    A handle keeps the value as long as anything uses it, so nothing public frees it.
    """
    with context.eager_mode():
        give(variable, tf.zeros([0], variable.dtype))


def is_freed(variable: tf.Variable) -> bool:
    """Returns whether an eager variable of known shape has no value."""
    return variable.shape.num_elements() != 0 and int(tf.size(variable.read_value())) == 0


def give(variable: tf.Variable, value: Any) -> None:
    """Assigns an eager variable a value, also where it has none.

    `Variable.assign` compares the shape of the value with the shape of the former one.
    """
    tf.raw_ops.AssignVariableOp(
        resource=variable.handle,
        value=tf.convert_to_tensor(value, variable.dtype),
        validate_shape=False,
    )


def array_of_tensor(value: tf.Tensor) -> NDArray[Any]:
    """Returns an eager tensor's value, without a copy where NumPy knows its dtype."""
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError):  # Not on the CPU, or bfloat16 and strings.
        array: NDArray[Any] = value.numpy()
        return array


def inner_graphs(graph: tf.Graph) -> list[tf.Graph]:
    """Returns the graphs of the functions that a function's graph calls, and that these call.

    A function's graph alone has the tracebacks of its operations, and nothing public returns it.
    """
    functions = getattr(graph, "_functions", {}).values()
    graphs = (getattr(function, "graph", None) for function in functions)
    inner = [of_function for of_function in graphs if of_function is not None]
    return [*inner, *(deeper for of_function in inner for deeper in inner_graphs(of_function))]


def called_functions(node: tf.compat.v1.NodeDef) -> list[str]:
    """Returns the names of the functions that a node calls, in its attributes' order."""
    values = node.attr.values()
    functions = [function for value in values for function in (value.func, *value.list.func)]
    return [function.name for function in functions if function.name]


@contextmanager
def restored_seed() -> Iterator[None]:
    """Puts back the seed of eager operations after the block, and how far they are in it.

    Nothing public returns either, and `tf.random.set_seed` begins again.
    """
    eager = context.context()
    seed = eager._seed, getattr(eager, "_rng", None)  # Absent before the first seed.
    try:
        yield
    finally:
        eager._seed, eager._rng = seed


# TensorFlow's, also in a block within another: a program may open the model of another run.
_register_gradient = tf.RegisterGradient.__call__


@contextmanager
def gradients_end_with_graphs() -> Iterator[None]:
    """Lets the gradients of functions with `tf.custom_gradient` in the block go with their graphs.

    TensorFlow registers the gradient of every call in a graph for good, and the gradient holds the
    graph of every step, as Keras's optimizers call `all_reduce`, which has such a gradient.
    """
    outer = tf.RegisterGradient.__call__
    tf.RegisterGradient.__call__ = _register_until_graph_ends
    try:
        yield
    finally:
        tf.RegisterGradient.__call__ = outer


def _register_until_graph_ends(registration: Any, gradient: Callable[..., Any]) -> Any:
    if gradient.__module__ != tf.custom_gradient.__module__:
        return _register_gradient(registration, gradient)
    graph = tf.compat.v1.get_default_graph()
    # Each holds the other, so that both live as long as anything uses the graph.
    graph.custom_gradients = [*getattr(graph, "custom_gradients", ()), gradient]
    _register_gradient(registration, weakref.proxy(gradient))
    weakref.finalize(graph, gradient_registry._registry.pop, registration._op_type, None)
    return gradient


def clear_local_devices(definition: tf.compat.v1.GraphDef) -> None:
    """Clears the devices that TensorFlow has chosen for eager tensors, of nodes and functions.

    A session has other names for them, and cannot even parse the names of `tf.py_function`.
    """
    functions = (function.node_def for function in definition.library.function)
    for node in itertools.chain(definition.node, *functions):
        if "job:localhost" in node.device or "device::" in node.device:
            node.device = ""


def slice_of(variable: tf.Variable) -> Any:
    """Returns which part of a partitioned variable this is; None for a whole one.

    The result has `full_name`, `full_shape` and `var_offset`. Nothing public has them.
    """
    return variable._get_save_slice_info()


def is_of_tensor(array: np.ndarray[Any, Any]) -> bool:
    """Returns whether an array is the whole memory of a tensor that TensorFlow returned.

    A tensor shares its memory with nothing else, and nothing public tells it from a view.
    """
    return type(array.base).__name__ == "tensorflow_wrapper"


def session_config(session: _Session) -> tf.compat.v1.ConfigProto:
    """Returns the configuration of a session, which has no public attribute for it."""
    return session._config


def prepare_step(
    session: _Session,
    feeds: Iterable[tf.Tensor],
    fetches: Iterable[tf.Tensor],
    targets: Iterable[tf.Operation],
    *,
    inline: bool,
) -> Step:
    """Returns a function that runs one kind of step.

    The public `Session.make_callable` hands feeds to `Session.run`, which it is meant to replace,
    and takes no options for all its calls. `_do_call` adds the operation and the place where it was
    defined to an error, as `Session.run` does.

    If `inline`, operations run in the caller's thread instead of TensorFlow's pool.
    """
    options = CallableOptions(
        feed=[tensor.name for tensor in feeds],
        fetch=[tensor.name for tensor in fetches],
        target=[operation.name for operation in targets],
    )
    options.run_options.inter_op_thread_pool = -1 if inline else 0
    return partial(session._do_call, session._make_callable_from_options(options))


def run_once(
    session: _Session, operations: Iterable[tf.Operation], feeds: Mapping[Any, Any] | None = None
) -> None:
    """Runs operations as `Session.run` does, and frees what TensorFlow has prepared for the run.

    A session keeps what it prepares until it is closed, with the constants that its graph optimizer
    computes. Initial zeros are such constants; their variables share them until the first update
    copies each. With Adam, 16 layers of 64 MB take their first step with a peak of 4,113 MiB, and
    5,266 if the session keeps their initialization. Only a callable can be released, which nothing
    public makes. Remote sessions, and feeds to be converted, are for `Session.run`.
    """
    targets, fed = list(dict.fromkeys(operations)), feeds or {}
    fit = all(
        isinstance(tensor, tf.Tensor)
        and isinstance(value, np.ndarray)
        and value.dtype == tensor.dtype.as_numpy_dtype
        and tensor.shape.is_compatible_with(value.shape)
        for tensor, value in fed.items()
    )
    if session.sess_str or not fit or not targets:
        session.run(targets, fed)
    else:
        prepare_step(session, fed, [], targets, inline=False)(*fed.values())


def assign_in_session(session: _Session, values: Iterable[tuple[tf.Variable, Any]]) -> None:
    """Assigns values to variables of a session, without operations of their own.

    The initial value of a variable is fed, a tensor that variables may share.
    """
    feeds: dict[str, Any] = {}
    operations: list[tf.Operation] = []
    for variable, value in values:
        tensor = variable.initializer.inputs[1].name
        if tensor in feeds:
            session.run(operations, feeds)
            feeds, operations = {}, []
        feeds[tensor] = value
        operations.append(variable.initializer)
    if operations:
        session.run(operations, feeds)


class SessionManagerWithLocalInit(tf.compat.v1.train.SessionManager):
    """A session manager with a method that is called between the local init and the ready check.

    Every new session comes there, also one that resumes: checkpoints hold nothing local.
    `prepare_session` and `recover_session` offer no public place between the two.
    """

    def run_more_local_inits(self, session: _Session) -> None:
        """Runs local inits besides the manager's own."""

    def _try_run_local_init_op(self, sess: _Session) -> tuple[bool, str | None]:
        done, message = super()._try_run_local_init_op(sess)
        if done:
            self.run_more_local_inits(sess)
        return done, message


class SupervisorWithManager(tf.compat.v1.train.Supervisor):
    """A supervisor with a method that chooses its session manager.

    The manager needs operations that TensorFlow's constructor adds to the graph, which it finalizes
    before it returns.
    """

    def choose_session_manager(self, manager: Any, **arguments: Any) -> Any:
        """Returns the manager.

        Args:
          manager: the constructor's `session_manager`.
          **arguments: TensorFlow's for a manager, if the constructor got none.
        """
        raise NotImplementedError

    def _init_session_manager(self, session_manager: Any = None) -> None:
        manager = self.choose_session_manager(
            session_manager,
            local_init_op=self._local_init_op,
            ready_op=self.ready_op,
            ready_for_local_init_op=self.ready_for_local_init_op,
            graph=self._graph,
            recovery_wait_secs=self._recovery_wait_secs,
            local_init_run_options=self._local_init_run_options,
        )
        super()._init_session_manager(manager)


def init_singular_session(
    session: tf.compat.v1.train.SingularMonitoredSession,
    creator: tf.compat.v1.train.SessionCreator,
    hooks: Sequence[tf.compat.v1.train.SessionRunHook] | None,
    stop_grace_period_secs: int,
) -> None:
    """Initializes a singular session with any creator.

    The public constructor makes a creator, and then calls its private base's in this way.
    """
    super(tf.compat.v1.train.SingularMonitoredSession, session).__init__(
        creator, hooks, should_recover=False, stop_grace_period_secs=stop_grace_period_secs
    )
