"""Which modules fit each other by their shapes, and how."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from runner.mapping.layouts import Layout, Shape, decide, fits, outputs_first, ways
from runner.mapping.modules import BIAS, BIAS_2, RECURRENT, ROLES, WEIGHT, Leaf, Module
from runner.rules.expressions import in_expression

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Taken:
    """The tensors that a variable takes, combined if there are several, and the steps.

    Attributes:
      tensors: the names; none for a constant.
      cut: the steps that take a part of the first tensor, such as a third of it; may be empty.
      step: the steps behind the cut; may be empty. Of a constant, the constant.
      others: tensors that fit as well, where the words of a module do not say which is which.
      function: what combines several.
      axis: the axis along which `concat` does.
    """

    tensors: tuple[str, ...]
    cut: str = ""
    step: str = ""
    others: tuple[str, ...] = ()
    function: str = "sum"
    axis: int = 0

    def expression(self) -> str:
        """Returns the expression of a rule."""
        names = [in_expression(name) or name for name in self.tensors]
        if not names:
            return self.step
        source = " | ".join(filter(None, (names[0], self.cut)))
        if len(names) > 1 and not self.step.startswith("torch_"):
            along = f", axis={self.axis}" if self.function == "concat" else ""
            source = f"{self.function}({', '.join([source, *names[1:]])}{along})"
        return " | ".join(filter(None, (source, self.step)))


@dataclass(frozen=True)
class Fitting:
    """How a module of tensors fits a module of variables.

    Attributes:
      by_variable: variable -> what it takes.
      constants: variable without a tensor, such as an absent bias -> what stands for it.
      extra: how many tensors no variable takes.
    """

    by_variable: Mapping[str, Taken]
    constants: Mapping[str, str] = field(default_factory=dict)
    extra: int = 0


# The formats that TensorFlow and Keras write, whose kernels lie as in a model.
_OF_TENSORFLOW = ("TensorFlow", "Keras")


class ModuleFitter:
    """Fits modules by the decision on the layout of the whole file.

    Attributes:
      layout: the decision; None where nothing decides.
      reason: its reason.
    """

    def __init__(
        self, variables: Sequence[Module], tensors: Sequence[Module], file_format: str = ""
    ) -> None:
        kernels = [leaf.shape for module in variables for leaf in _kernels(module)]
        matrices = [leaf.shape for module in tensors for leaf in _kernels(module)]
        votes = sum(map(_orientation, tensors))
        if sum(map(_orientation, variables)) > 0:
            votes = -votes  # The model's kernels lie outputs first too.
        if file_format.startswith(_OF_TENSORFLOW):
            self.layout: Layout | None = Layout.SAME
            self.reason = f"a {file_format} has TensorFlow's"
        else:
            self.layout, self.reason = decide(kernels, matrices, votes)
        # Where nothing decides; PyTorch writes no NumPy files.
        self._default = Layout.SAME if file_format.startswith("NumPy") else Layout.FLIPPED
        self._shapes = {*matrices}
        self._fitting_layouts: dict[Shape, set[Layout | None]] = {}

    def alone(self, variables: Sequence[Module], tensors: Sequence[Module]) -> Array:
        """Returns how many variables and tensors stay alone; infinite where modules do not fit."""
        matrix = np.full((len(variables), len(tensors)), np.inf)
        theirs = _kinds(tensors)
        for rows in _kinds(variables):
            for columns in theirs:
                one, two = variables[rows[0]], tensors[columns[0]]
                fitting = self.fit(one, two) if one.sizes[-1] == two.sizes[-1] else None
                if fitting is not None:
                    matrix[np.ix_(rows, columns)] = len(fitting.constants) + fitting.extra
        return matrix

    def fit(self, variables: Module, tensors: Module) -> Fitting | None:
        """Returns how a module of tensors fits a module of variables, None if it does not."""
        if RECURRENT in variables.leaves or RECURRENT in tensors.leaves:
            return fit_recurrent(variables, tensors)
        free = dict(tensors.leaves)
        taken: dict[str, Taken] = {}
        constants, unnamed = dict[str, str](), []
        for role, leaf in variables.leaves.items():
            if role not in free:
                unnamed.append((role, leaf))
            elif (one := self.take(leaf, free.pop(role))) is None:
                return None
            else:
                taken[leaf.name] = one
        for role, leaf in unnamed:
            options = {
                tensor.name: one
                for other, tensor in free.items()
                if other not in ROLES.values() and (one := self.take(leaf, tensor)) is not None
            }
            if options:
                guesses = {*options} - {name for leaf in taken.values() for name in leaf.tensors}
                first = next((name for name in options if name in guesses), next(iter(options)))
                others = tuple(options) if len(options) > 1 else ()
                taken[leaf.name] = replace(options[first], others=others)
            elif missing := constant(role, leaf.shape):
                constants[leaf.name] = missing
            else:
                return None
        for several in [leaf for leaf in taken.values() if leaf.others]:
            free = {role: leaf for role, leaf in free.items() if leaf.name not in several.others}
        used = {name for leaf in taken.values() for name in (*leaf.tensors, *leaf.others)}
        extra = [role for role, leaf in tensors.leaves.items() if leaf.name not in used]
        if not taken or {*extra} - {BIAS, WEIGHT}:
            return None
        return Fitting(taken, constants, len(extra))

    def take(self, variable: Leaf, tensor: Leaf) -> Taken | None:
        """Returns how a variable takes a tensor in the layout of the file, None if it cannot."""
        layouts: dict[Layout | None, Taken] = {}
        for way in ways(variable, tensor.shape):
            if not way.cut and way.layout is not Layout.OTHER:
                layouts.setdefault(way.layout, Taken((tensor.name,), tensor.cut, way.step))
        any_ = next(iter(layouts.values()), None)
        if variable.is_table or None in layouts or len(variable.shape) < 2:
            return any_
        if self.layout in layouts or self.layout is None:
            return layouts.get(self.layout or self._default, any_)
        return None if self.layout in self._layouts(variable.shape) else any_

    def _layouts(self, shape: Shape) -> set[Layout | None]:
        """Returns the layouts in which tensors of the file fit a shape."""
        if shape not in self._fitting_layouts:
            self._fitting_layouts[shape] = {
                way.layout for tensor in self._shapes for way in fits(shape, tensor)
            }
        return self._fitting_layouts[shape]


def constant(role: str, shape: Shape) -> str | None:
    """Returns what stands for a bias or a scale that a module lacks."""
    return "zeros()" if role == BIAS else "ones()" if role == WEIGHT and len(shape) == 1 else None


def is_only(variables: Module, tensors: Module, name: str) -> bool:
    """Whether shapes leave one way to give a variable one of a module's tensors."""
    leaf = next(leaf for leaf in variables.leaves.values() if leaf.name == name)
    if leaf.is_table:
        return True
    return sum(len(fits(leaf.shape, tensor.shape)) for tensor in tensors.leaves.values()) == 1


def _kinds(modules: Sequence[Module]) -> list[list[int]]:
    """Returns the indices of the modules that fit alike, but for their names."""
    kinds: dict[object, list[int]] = defaultdict(list)
    for index, module in enumerate(modules):
        leaves = module.leaves.items()
        kind = [(role, x.shape, x.is_table) for role, x in leaves]
        kinds[tuple(kind)].append(index)
    return [*kinds.values()]


def _kernels(module: Module) -> list[Leaf]:
    return [leaf for leaf in module.leaves.values() if len(leaf.shape) > 1 and not leaf.is_table]


def _orientation(module: Module) -> int:
    """Returns 1 where a kernel lies outputs first by its bias, -1 where last, else 0."""
    weight, bias = module.leaves.get(WEIGHT), module.leaves.get(BIAS)
    if weight is None or bias is None or len(weight.shape) < 2:
        return 0
    first = outputs_first(weight.shape, bias.shape)
    return 0 if first is None else 1 if first else -1


_GATES = {4: "torch_lstm", 3: "torch_gru"}


def fit_recurrent(variables: Module, tensors: Module) -> Fitting | None:
    """Fits an LSTM or a GRU of PyTorch by its gates."""
    mine, theirs = variables.leaves, tensors.leaves
    if not {WEIGHT, RECURRENT} <= mine.keys() & theirs.keys():
        return None
    inputs, units = mine[WEIGHT].shape[0], mine[RECURRENT].shape[0]
    gates = mine[RECURRENT].shape[-1] // units
    step = _GATES.get(gates)
    if step is None or theirs[WEIGHT].shape != (gates * units, inputs):
        if (
            theirs[WEIGHT].shape != mine[WEIGHT].shape
            or theirs[RECURRENT].shape != mine[RECURRENT].shape
        ):
            return None
        step = ""
    elif theirs[RECURRENT].shape != (gates * units, units):
        return None
    taken = {
        mine[role].name: Taken((theirs[role].name,), step=step) for role in (WEIGHT, RECURRENT)
    }
    biases = tuple(theirs[role].name for role in (BIAS, BIAS_2) if role in theirs)
    if BIAS not in mine:
        return Fitting(taken, extra=len(biases))
    if not biases:
        return Fitting(taken, {mine[BIAS].name: "zeros()"})
    taken[mine[BIAS].name] = Taken(biases, step=step)
    return Fitting(taken)
