"""Warm starts from pretrained scaffolds: a plan of what their savers restore."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import tensorflow as tf

from runner.checkpoints.contents import LostCheckpointError, NoCheckpointError
from runner.checkpoints.locate import checkpoint_paths
from runner.checkpoints.open import open_reader
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec, TensorSpec
from runner.config.choices import StateClass
from runner.errors import CheckpointError, ConfigError, Problem
from runner.internals.tensorflow import run_once
from runner.planning.plan import Assignment, RestorationPlan
from runner.planning.problems import Miss, combined, missing_problems
from runner.planning.variables import VariableSpec
from runner.restoration.engine import restore_values
from runner.restoration.initialization import necessary
from runner.restoration.restorer import InitFunction, WarmStarter
from runner.restoration.session_assigner import AssignOp, Feeds, SessionAssigner
from runner.rules.conversions import Reshape, Slice
from runner.rules.source_tensors import SourceTensor

_Scaffold: TypeAlias = tf.compat.v1.train.Scaffold
_Saver: TypeAlias = tf.compat.v1.train.Saver
_Path: TypeAlias = str | bytes | os.PathLike[str]
Directories: TypeAlias = Sequence[_Path | None] | _Path
Scaffolds: TypeAlias = Sequence[_Scaffold] | _Scaffold
# What TensorFlow's Saver puts after its name for a keras.Variable; in a list, there is no name.
_OF_KERAS = "VARIABLE_VALUE"
_NAME_THEM = (
    "name the tensors in the saver: tf.train.Saver({NAME: variable}); for a keras.Variable, give "
    "the saver its own: {NAME: variable.value}"
)


class PretrainedScaffolds(WarmStarter):
    """Warm-starts sessions from scaffolds whose savers select what their checkpoints restore.

    Messages call a scaffold by its `name`, or without one by its position in the list.

    Args:
      checkpoint_dirs: for each scaffold the location of its checkpoint, or None. One path is a
        list of one.
      scaffolds: the scaffolds. One scaffold is a list of one.

    Raises:
      ConfigError: when the two lists differ in length, or one of the scaffolds is something else.
    """

    def __init__(self, checkpoint_dirs: Directories | None, scaffolds: Scaffolds | None) -> None:
        directories, scaffolds = _listed(checkpoint_dirs), _listed(scaffolds)
        for scaffold in scaffolds:
            if not isinstance(scaffold, tf.compat.v1.train.Scaffold):
                raise ConfigError.of(
                    f"{scaffold!r} is not a tf.compat.v1.train.Scaffold",
                    "a scaffold's saver selects the variables that its checkpoint restores",
                    "wrap a saver: runner.Scaffold(saver=...)",
                )
        if len(directories) != len(scaffolds):
            raise ConfigError.of(
                f"{len(scaffolds)} scaffolds and {len(directories)} checkpoint directories are "
                "given",
                "each scaffold restores from the directory at its place in the list",
                "give lists of one length, with None for a scaffold without a checkpoint",
            )
        names = [getattr(scaffold, "name", "") for scaffold in scaffolds]
        unique = [
            name if names.count(name) == 1 and name else str(at) for at, name in enumerate(names)
        ]
        self._scaffolds = dict(zip(unique, scaffolds, strict=True))
        self._directories = {
            name: os.fsdecode(directory)
            for name, directory in zip(unique, directories, strict=True)
            if directory is not None
        }

    def __bool__(self) -> bool:
        return bool(self._scaffolds)

    @property
    def local_inits(self) -> dict[tf.Operation, Feeds | None]:
        """The local initializers of the scaffolds -> what they are fed."""
        return {
            scaffold.local_init_op: scaffold.local_init_feed_dict
            for scaffold in self._scaffolds.values()
            if scaffold.local_init_op is not None
        }

    def build(self) -> None:
        """Builds deferred savers while the graph can still grow.

        Raises:
          ConfigError: when a scaffold has no saver: TensorFlow would give it the default one, which
            restores every variable of the model.
        """
        for name, scaffold in self._scaffolds.items():
            if scaffold.saver is None:
                raise ConfigError.of(
                    f"pretrained_scaffolds[{list(self._scaffolds).index(name)}] has no saver",
                    "its saver selects the variables that its checkpoint restores",
                    "Scaffold(saver=tf.compat.v1.train.Saver(var_list))",
                )
            scaffold.saver.build()

    def warm_start(
        self,
        session: tf.compat.v1.Session,
        init_op: tf.Operation | None,
        init_feed_dict: Feeds | None,
        *,
        init_fn: InitFunction | None,
    ) -> None:
        """Runs the inits of the model and of the scaffolds, then restores.

        Raises:
          ConfigError: when a scaffold has no saver, or two savers restore one variable.
          CheckpointError: when a source cannot be restored. Nothing has been initialized then,
            unless a tensor is damaged.
        """
        self.build()
        readers = self._open()
        savers = {name: self._scaffolds[name].saver for name in readers}
        plan, targets = plan_savers(savers, readers)
        # Each runs once: scaffolds that set no init share the graph's default.
        inits = {init_op: init_feed_dict}
        for scaffold in self._scaffolds.values():
            inits.setdefault(scaffold.init_op, scaffold.init_feed_dict)
        inits.pop(None, None)
        functions = [init_fn, *(scaffold.init_fn for scaffold in self._scaffolds.values())]
        functions = [function for function in functions if function is not None]
        overwritten = {assignment.variable.name for assignment in plan.assignments}
        if functions:
            overwritten = set()  # A function may read any variable.
        for operation, feeds in inits.items():
            run_once(session, necessary([operation], overwritten, inits), feeds)
        for function in functions:
            function(session)
        assigner = SessionAssigner(session, targets, variables={})
        restore_values(plan, readers, assigner)

    def _open(self) -> dict[str, CheckpointReader]:
        """Opens the checkpoints of the scaffolds that restore.

        Raises:
          CheckpointError: with every checkpoint that cannot be opened, or is missing and not
            declared optional; a ValueError too if a `checkpoint` file leads to nothing.
        """
        readers: dict[str, CheckpointReader] = {}
        problems: list[Problem] = []
        error_class = CheckpointError
        places = {name: place for place, name in enumerate(self._scaffolds)}
        for name, directory in self._directories.items():
            try:
                with CheckpointError.within(f"pretrained_checkpoint_dirs[{places[name]}]"):
                    readers[name] = open_reader(checkpoint_paths(directory)[0])
            except NoCheckpointError as error:
                if not getattr(self._scaffolds[name], "optional", False):
                    remedy = "declare it: runner.Scaffold(optional=True)"
                    problems += error.or_else(remedy).problems
            except CheckpointError as error:
                problems += error.problems
                if isinstance(error, LostCheckpointError):
                    error_class = LostCheckpointError
        if problems:
            raise error_class(*problems)
        return readers


def _listed(value: Any) -> list[Any]:
    """Returns an argument as a list, of one item where it is a path or not iterable."""
    if value is None:
        return []
    is_one = isinstance(value, str | bytes | os.PathLike) or not isinstance(value, Iterable)
    return [value] if is_one else list(value)


def plan_savers(
    savers: Mapping[str, _Saver], readers: Mapping[str, CheckpointReader]
) -> tuple[RestorationPlan, dict[str, AssignOp]]:
    """Plans what the savers of scaffolds restore from their checkpoints.

    A saver's operations restore by `RestoreV2`; they are fed the values in its place.

    Returns:
      The plan, and the target of each of its variables.

    Raises:
      ConfigError: when two savers restore one variable.
      CheckpointError: when a checkpoint lacks a tensor, or has it in another shape or dtype.
    """
    restored = {name: list(_restored_tensors(saver)) for name, saver in savers.items()}
    _refuse_overlap(restored)
    assignments: list[Assignment] = []
    problems: list[Problem] = []
    targets: dict[str, AssignOp] = {}
    graph = tf.compat.v1.get_default_graph()
    specs = {name: reader.spec() for name, reader in readers.items()}
    for name, spec in specs.items():
        tensors = restored[name]
        fitting, misfits = _assign(name, tensors, spec)
        assignments += fitting
        problems += misfits
        everything = graph.get_operation_by_name(savers[name].as_saver_def().restore_op_name)
        # A table has no operation that assigns it alone.
        has_table = any(tensor.assign is None for tensor in tensors)
        targets |= {
            tensor.name: AssignOp(tensor.value, everything if has_table else tensor.assign)
            for tensor in tensors
        }
    if problems:
        raise CheckpointError(*problems)
    return RestorationPlan(tuple(assignments), specs, {}), targets


@dataclass(frozen=True)
class _RestoredTensor:
    """A tensor that a saver restores.

    Attributes:
      key: its name in checkpoints.
      shape: the shape of the variable, or of the whole of which the variable is a part.
      value: the tensor of the graph that holds its value, an output of `RestoreV2`.
      assign: the operation that assigns it to a variable; None for a table.
      conversion: takes a block of the tensor, or reshapes it; None for the whole as it is.
    """

    key: str
    shape: tf.TensorShape
    value: tf.Tensor
    assign: tf.Operation | None
    conversion: Slice | Reshape | None = None

    @property
    def name(self) -> str:
        """The name of the variable, or of the value of a table."""
        return str(self.value.name if self.assign is None else self.assign.inputs[0].op.name)

    def assignment(self, scaffold: str, tensor: TensorSpec) -> Assignment:
        """Returns the assignment of a tensor of a checkpoint.

        Raises:
          ValueError: when the tensor does not fit.
        """
        dtype = self.value.dtype.base_dtype.name
        fits = isinstance(self.conversion, Reshape) or self.shape.is_compatible_with(tensor.shape)
        if tensor.dtype != dtype or not fits:
            expected = "of any shape" if self.shape.rank is None else list(self.shape)
            raise ValueError(f"the variable is {dtype} {expected}")
        conversions = () if self.conversion is None else (self.conversion,)
        shape = tensor.shape if self.conversion is None else self.conversion.shape(tensor.shape)
        spec = TensorSpec(self.name, shape, dtype)
        variable = VariableSpec(spec, StateClass.weights, trainable=True, initializer="")
        return Assignment(variable, scaffold, SourceTensor(scaffold, tensor, conversions))


def _assign(
    scaffold: str, tensors: Iterable[_RestoredTensor], spec: CheckpointSpec
) -> tuple[list[Assignment], list[Problem]]:
    """Returns the assignments of a scaffold, and the problems of tensors that it cannot restore."""
    key = f"scaffolds.{scaffold}"
    assignments: list[Assignment] = []
    misses: list[Miss] = []
    misfits: list[Problem] = []
    for restored in tensors:
        tensor = spec.find(restored.key)
        if tensor is None:
            name = restored.key.removesuffix(_OF_KERAS) or restored.key
            shape = tuple(restored.shape.as_list()) if restored.shape.is_fully_defined() else ()
            misses.append(Miss(restored.name, name, shape))
            continue
        try:
            assignments.append(restored.assignment(scaffold, tensor))
        except ValueError as error:
            misfits.append(
                Problem(
                    f"{key}: {restored.name} cannot be restored from {tensor.name}, which is "
                    f"{tensor.dtype} {list(tensor.shape)} in {spec.path}",
                    str(error),
                    "build the model as it was when it was saved, or leave the variable out of the "
                    "saver's var_list",
                )
            )
    taken = {name for a in assignments if a.source_tensor for name in a.source_tensor.names}
    missing = missing_problems(key, spec, misses, taken=taken)
    return assignments, [
        *(replace(problem, remedy=_NAME_THEM) for problem in missing),
        *combined(key, misfits),
    ]


def _refuse_overlap(restored: Mapping[str, Iterable[_RestoredTensor]]) -> None:
    scaffolds: dict[str, str] = {}
    problems = [
        Problem(
            f"{tensor.name} is restored by scaffolds.{first} and scaffolds.{name}",
            "a variable's value comes from one place",
            "leave it out of one saver's var_list",
        )
        for name, tensors in restored.items()
        for tensor in tensors
        if (first := scaffolds.setdefault(tensor.name, name)) != name
    ]
    if problems:
        raise ConfigError(*problems)


def _restored_tensors(saver: _Saver) -> Iterator[_RestoredTensor]:
    """Yields the tensors that the operations of a saver read from its file.

    The operations know it of every saver. A saver of an imported graph has no list of variables,
    and others hide theirs; and in a finalized graph, a value can only be fed in their place.
    """
    graph = tf.compat.v1.get_default_graph()
    filename = graph.get_tensor_by_name(saver.as_saver_def().filename_tensor_name)
    for operation in filename.consumers():
        if operation.type != "RestoreV2":
            continue
        keys, blocks = (tf.get_static_value(tensor) for tensor in operation.inputs[1:])
        for key, block, value in zip(keys, blocks, operation.outputs, strict=True):
            assign, reshaped = _assigning(value)
            variable = assign and assign.inputs[0].op
            shape = tf.TensorShape(variable and variable.get_attr("shape"))
            conversion: Slice | Reshape | None = None
            if block:
                shape, conversion = _block(block.decode())
            elif reshaped and shape.is_fully_defined():
                conversion = Reshape(tuple(shape.as_list()))
            yield _RestoredTensor(key.decode(), shape, value, assign=assign, conversion=conversion)


def _block(spec: str) -> tuple[tf.TensorShape, Slice]:
    """Returns the whole shape and the block that `RestoreV2` spells `4 3 0,2:-`."""
    *sizes, spans = spec.split()
    whole = tuple(map(int, sizes))
    ranges = [
        (0, size) if span == "-" else tuple(map(int, span.split(",")))
        for size, span in zip(whole, spans.split(":"), strict=True)
    ]
    offset, size = zip(*ranges, strict=True)
    return tf.TensorShape(whole), Slice(offset, size)


def _assigning(value: tf.Tensor) -> tuple[tf.Operation | None, bool]:
    """Returns the operation that assigns a value, and whether the value is reshaped before."""
    for operation in value.consumers():
        if operation.type.startswith("Assign"):
            return operation, False
        for output in operation.outputs:
            assign, reshaped = _assigning(output)
            if assign is not None:
                return assign, reshaped or operation.type == "Reshape"
    return None, False
