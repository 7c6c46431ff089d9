"""The checkpoints of pretrained scaffolds: found, and restored through the scaffolds' savers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from runner.checkpoints.contents import LostCheckpointError, NoCheckpointError
from runner.checkpoints.locate import is_mlflow_uri, resolve
from runner.checkpoints.open import open_checkpoint
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec
from runner.errors import CheckpointError, ConfigError, Problem, nearest

_Scaffold: TypeAlias = tf.compat.v1.train.Scaffold
# What TensorFlow's Saver puts after its name for a keras.Variable; in a list, there is no name.
_OF_KERAS = "VARIABLE_VALUE"


def locate(sources: Sequence[tuple[_Scaffold, str | None]]) -> list[tuple[_Scaffold, str]]:
    """Returns the scaffolds that restore, each with what `open_checkpoint` opens.

    Raises:
      CheckpointError: with every scaffold whose checkpoint is missing and not declared optional;
        a LostCheckpointError, which is a ValueError too, if a `checkpoint` file leads to nothing.
    """
    found: list[tuple[_Scaffold, str]] = []
    problems: list[Problem] = []
    kind = CheckpointError
    for scaffold, source in sources:
        if source is None:
            continue
        if is_mlflow_uri(source):
            remedy = f"mlflow.artifacts.download_artifacts({source!r}) returns the path of a copy"
            problems.append(Problem(f"{source} is in MLflow", "only files are restored", remedy))
            continue
        try:
            found.append((scaffold, resolve(source)[0]))
        except NoCheckpointError as error:
            if not getattr(scaffold, "optional", False):
                problems += error.or_else("declare it: runner.Scaffold(optional=True)").problems
        except CheckpointError as error:
            problems += error.problems
            kind = type(error) if isinstance(error, LostCheckpointError) else kind
    if problems:
        raise kind(*problems)
    return found


@dataclass(frozen=True)
class _Restored:
    """A tensor that a saver restores.

    Attributes:
      key: its name in checkpoints.
      part: the part of it that is read, as `RestoreV2` has it; empty for all of it.
      value: what is read, an output of `RestoreV2`.
      variable: the operation of the variable that it is assigned to; None for a table.
      reshaped: whether the saver gives it the variable's shape.
    """

    key: str
    part: str
    value: tf.Tensor
    variable: tf.Operation | None
    reshaped: bool

    def shape(self) -> tf.TensorShape:
        """Returns the shape that the tensor must have in a checkpoint."""
        if self.part:
            return tf.TensorShape([int(size) for size in self.part.split()[:-1]])
        if self.variable is None or self.reshaped:
            return tf.TensorShape(None)
        return tf.TensorShape(self.variable.get_attr("shape"))

    def taken_from(self, whole: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the part of a whole tensor."""
        if not self.part:
            return whole
        spans = (each.split(",") for each in self.part.split()[-1].split(":"))
        return whole[
            tuple(slice(int(s[0]), sum(map(int, s))) if s[1:] else slice(None) for s in spans)
        ]


class _Source:
    """A scaffold and its checkpoint, as `locate` found it."""

    def __init__(self, scaffold: _Scaffold, path: str) -> None:
        self._saver, self._label, self._path = scaffold.saver, label(scaffold), path
        self._reader = open_checkpoint(path)
        self._restored = list(_restored(self._saver))
        bundle = self._reader.bundle()
        by_name = bundle is not None and {x.key for x in self._restored} <= {*bundle.keys.values()}
        # What the saver itself reads; None where the tensors are fed to it.
        self._prefix = bundle.prefix if bundle is not None and by_name else None

    def problems(self) -> list[Problem]:
        """Returns what of the checkpoint does not fit the saver."""
        return _problems(self._label, self._restored, self._reader.spec())

    def restore(self, session: tf.compat.v1.Session) -> None:
        """Restores, adding nothing to the graph.

        Raises:
          CheckpointError: when the checkpoint cannot be read.
        """
        if self._restored and self._prefix is None:
            fed = _fed(self._restored, self._reader)
            session.run(self._saver.as_saver_def().restore_op_name, fed)
            return
        try:
            self._saver.restore(session, self._prefix or self._path)
        except (tf.errors.OpError, ValueError) as error:
            for _ in self._reader.read([each.key for each in self._restored]):
                pass  # Raises an error that names the tensor, where one is damaged.
            # TensorFlow's own error stands between its advice and a stack trace.
            found = re.search(r"^Node: .*\n(.+)", str(error), re.MULTILINE)
            cause = found[1] if found else str(error).rpartition("Original error:")[2].strip()
            state = f"{self._label} cannot be restored from {self._path}"
            raise CheckpointError(Problem(state, cause)) from error


def restore(session: tf.compat.v1.Session, restores: Sequence[tuple[_Scaffold, str]]) -> None:
    """Restores the variables of the scaffolds' savers, adding nothing to the graph.

    A checkpoint that TensorFlow saved by name is restored by the saver; of any other, the tensors
    that have the names of the saver's `var_list` are read and fed to its operations.

    Raises:
      CheckpointError: when a checkpoint lacks a tensor, or has it in another shape or dtype;
        nothing has been restored then. Also when one cannot be read.
    """
    sources = [_Source(scaffold, path) for scaffold, path in restores]
    # Before any is restored: TensorFlow lets a tensor change the shape of a resource variable.
    problems = [problem for source in sources for problem in source.problems()]
    if problems:
        raise CheckpointError(*problems)
    for source in sources:
        source.restore(session)


def _fed(
    restored: Sequence[_Restored], reader: CheckpointReader
) -> dict[tf.Tensor, np.ndarray[Any, Any]]:
    aliases = reader.spec().aliases
    names = [aliases.get(each.key, each.key) for each in restored]
    values = dict(reader.read(list(dict.fromkeys(names))))
    return {
        each.value: each.taken_from(values[name])
        for name, each in zip(names, restored, strict=True)
    }


def _problems(owner: str, restored: Sequence[_Restored], spec: CheckpointSpec) -> list[Problem]:
    """Returns what of a checkpoint does not fit a scaffold's saver."""
    problems = []
    known = {**spec.tensors, **{alias: spec.tensors[name] for alias, name in spec.aliases.items()}}
    for each in restored:
        name = each.variable.name if each.variable else each.key
        state = f"{owner} cannot restore {name} from {spec.path}"
        found, shape, dtype = known.get(each.key), each.shape(), each.value.dtype.base_dtype.name
        if found is None:
            cause = f"it holds no tensor {each.key!r}"
            remedy = "name the tensor in the saver: tf.train.Saver({NAME: variable})"
            key = each.key.removesuffix(_OF_KERAS)
            if key != each.key and not key.endswith("/"):
                cause += ", as tf.train.Saver calls that of a keras.Variable"
                remedy = "give the saver the variable's own: tf.train.Saver({NAME: variable.value})"
            problems.append(Problem(state, cause, remedy, nearest(key, known)))
        elif not shape.is_compatible_with(found.shape) or dtype != found.dtype:
            cause = f"its {each.key} is {found.dtype} {list(found.shape)}, "
            cause += f"the variable {dtype} {shape.as_list() if shape.rank is not None else ''}"
            remedy = "build the model as it was when it was saved, or leave the variable out of "
            problems.append(Problem(state, cause.strip(), f"{remedy}the saver's var_list"))
    return problems


def refuse_overlap(restores: Sequence[tuple[_Scaffold, str]]) -> None:
    """Checks that no variable is restored twice.

    Raises:
      ConfigError: with every variable that is.
    """
    owner: dict[str, tuple[_Scaffold, str]] = {}
    problems = []
    for scaffold, path in restores:
        for variable in sorted(restored_variables(scaffold.saver)):
            if variable in owner:
                first, first_path = owner[variable]
                problems.append(
                    Problem(
                        f"{variable} is restored by {label(first)} from {first_path} and by "
                        f"{label(scaffold)} from {path}",
                        "a variable's value comes from one place",
                        "leave it out of one saver's var_list",
                    )
                )
            owner[variable] = (scaffold, path)
    if problems:
        raise ConfigError(*problems)


def restored_variables(saver: Any) -> set[str]:
    """Returns the names of the variables' operations that a saver's restore assigns."""
    if not isinstance(saver, tf.compat.v1.train.Saver):
        return {variable.op.name for variable in saver.variables}
    return {each.variable.name for each in _restored(saver) if each.variable is not None}


def _restored(saver: Any) -> Iterator[_Restored]:
    """Yields what a saver restores; a saver does not list it, so its operation is followed."""
    if not isinstance(saver, tf.compat.v1.train.Saver):
        return
    graph = tf.compat.v1.get_default_graph()
    pending, seen = [graph.get_operation_by_name(saver.as_saver_def().restore_op_name)], set()
    while pending:
        op = pending.pop()
        if op in seen:
            continue
        seen.add(op)
        pending += [*op.control_inputs, *(each.op for each in op.inputs)]
        if op.type == "RestoreV2":
            keys, parts = (tf.get_static_value(each) for each in op.inputs[1:])
            for key, part, value in zip(keys, parts, op.outputs, strict=True):
                yield _Restored(key.decode(), part.decode(), value, *_assigned(value))


def _assigned(value: tf.Tensor) -> tuple[tf.Operation | None, bool]:
    """Returns the variable that a value is assigned to, and whether it is reshaped for that."""
    for op in value.consumers():
        if op.type.startswith("Assign"):
            return op.inputs[0].op, False
        for output in op.outputs:
            variable, reshaped = _assigned(output)
            if variable is not None:
                return variable, reshaped or op.type == "Reshape"
    return None, False


def label(scaffold: _Scaffold) -> str:
    """Returns how messages call a scaffold."""
    name = getattr(scaffold, "name", "")
    return f"scaffold {name}" if name else "a scaffold"
