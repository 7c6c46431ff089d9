"""Finds the tensors in a scaffold's checkpoint for each variable that the scaffold claims."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from runner.checkpoints.quantization import REMEDY
from runner.checkpoints.reader import CheckpointSpec
from runner.config.choices import Missing, StateClass
from runner.config.schema import ScaffoldConfig
from runner.errors import PlanError, Problem
from runner.planning.codes import Codes
from runner.planning.problems import (
    Miss,
    bad_rules,
    combined,
    missing_problems,
    unused_rule,
)
from runner.planning.tensor_fitting import TensorFitter
from runner.planning.variables import EMA_SUFFIX, VariableSpec, moving_average
from runner.rules.expressions import names_in
from runner.rules.patterns import compile_pattern
from runner.rules.source_tensors import SourceTensor
from runner.rules.target import ConvertedVariable
from runner.rules.translator import Translator


class TensorChoice(NamedTuple):
    """The tensors that a variable takes from a checkpoint, or notes on why it takes none."""

    source_tensor: SourceTensor | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorChoices:
    """The tensors that a scaffold's variables take from its checkpoint.

    Attributes:
      by_variable: name of every variable -> its tensors.
      problems: everything that is wrong.
      unused: the checkpoint's tensors that no variable takes.
    """

    by_variable: Mapping[str, TensorChoice]
    problems: tuple[Problem, ...]
    unused: tuple[str, ...] = ()


def choose_tensors(
    scaffold: str,
    config: ScaffoldConfig,
    source: CheckpointSpec,
    *,
    variables: Sequence[VariableSpec],
    owners: Mapping[str, str],
    addresses: Mapping[str, str],
) -> TensorChoices:
    """Matches the variables that a scaffold claims with the tensors of its checkpoint.

    `owners` maps slots and averages to the variables that they belong to, see `owners_of`;
    `addresses` maps variables to `VariableSpec.address`, where they have one.
    """
    problems = bad_rules(scaffold, config)
    if problems:
        return TensorChoices({}, tuple(problems), tuple(source.tensors))
    matcher = _Matcher(scaffold, config, source, owners=owners, addresses=addresses)
    return TensorChoices(
        {variable.name: matcher.choose(variable) for variable in variables},
        tuple(matcher.problems(variables)),
        tuple(name for name in source.tensors if name not in matcher.taken),
    )


_COUNTED = "layers with names that Keras counts are identified by their places, and it has others"
_UNTRAINED = "its optimizer has none of it: the variable did not train there"
_NUMBERED = (
    "averages are among the numbered variables of its optimizer, which an optimizer of the same "
    "class with use_ema names if `state` has moving_averages; a rename to optimizer/vars/N does too"
)
_OF_OPTIMIZERS = (StateClass.optimizer_slots, StateClass.moving_averages)
# Tensors that give a variable, or a part of one, its value if the checkpoint has them all; notes.
_Candidate: TypeAlias = tuple[VariableSpec, tuple[str, ...], tuple[str, ...]]


class _Matcher:
    """Matches the variables of one scaffold, and collects the problems.

    Attributes:
      taken: the tensors that variables take.
    """

    def __init__(
        self,
        scaffold: str,
        config: ScaffoldConfig,
        source: CheckpointSpec,
        *,
        owners: Mapping[str, str],
        addresses: Mapping[str, str],
    ) -> None:
        self._key, self._config, self._source = f"scaffolds.{scaffold}", config, source
        self._owners, self._addresses = owners, addresses
        self._fitter = TensorFitter(scaffold, config)
        self._codes = Codes(self._key, config, source)
        self._translator = Translator(config)
        self._names = {*source.tensors, *source.other_names}
        self._misses: dict[str, Miss] = {}
        self._misfits: list[Problem] = []
        self.taken: set[str] = set()

    def choose(self, variable: VariableSpec) -> TensorChoice:
        """Returns what the checkpoint gives to the variable."""
        try:
            return self._match(variable)
        except PlanError as error:
            self._misfits += error.problems
        except ValueError as error:
            self._misfits.append(
                Problem(
                    f"{self._key}: {variable.full_name} cannot be converted",
                    str(error),
                    "fix the rule in rules, rename, convert, transpose or vocabulary, or exclude "
                    "the variable",
                )
            )
        return TensorChoice()

    def _match(self, variable: VariableSpec) -> TensorChoice:
        # A slot or an average has the rules of the variable that it belongs to.
        full_name = variable.full_name
        owner = self._owners.get(full_name)
        name = owner or full_name
        target = ConvertedVariable(
            name,
            variable.full_shape,
            owner is not None,
            variable.layer,
            axes=variable.axes,
            has_conv1d=self._has_conv1d,
            read=self._translator.read,
        )
        exact = self._translator.renames.exact(full_name) if owner else None
        address = self._addresses.get(name)
        expression, renamed = self._translator.expression(
            (name, address) if address else (name,), target, self._has, exact
        )
        names = tuple(names_in(expression))
        if exact is None:
            names = tuple(self._placed(name, address, tensor) for tensor in names)
        if "" in names:
            return self._miss(variable, (name,), renamed=renamed, reason=_COUNTED)
        if owner and exact is None:
            end = full_name.removeprefix(owner)
            names = tuple(self._of_tensor(tensor, end) for tensor in names)
        self._codes.require_none(variable, names, expression)
        for fitted, wanted, notes in self._candidates(variable, names, renamed=renamed):
            tensors = [tensor for name in wanted if (tensor := self._source.find(name))]
            if len(tensors) == len(wanted):
                source_tensor, more = self._fitter.fit(fitted, tensors, expression, target=target)
                if source_tensor:
                    self.taken.update([tensor.name for tensor in tensors])
                return TensorChoice(source_tensor, (*notes, *more))
        return self._miss(variable, names, renamed=renamed)

    def _placed(self, variable: str, address: str | None, name: str) -> str:
        """Returns a tensor's name, where the file's structure tells it; see `Places.place`."""
        place = self._source.place
        tensor = place(variable, variable if name == address else name) if place else None
        return name if tensor is None else tensor

    def _of_tensor(self, name: str, end: str) -> str:
        """Returns the name of a slot or an average of a tensor."""
        tensor = self._source.find(name)
        is_other = self._source.find(name + end) is None
        return f"{tensor.name}{end}" if is_other and tensor is not None else name + end

    @functools.cached_property
    def _has_conv1d(self) -> bool:
        """Whether a weight of the checkpoint has as many columns, not rows, as its bias entries."""
        tensors = self._source.tensors
        weights = {name: spec.shape for name, spec in tensors.items() if name.endswith(".weight")}
        biases = {name: tensors.get(f"{name.removesuffix('weight')}bias") for name in weights}
        return any(
            len(shape) == 2 and bias is not None and shape[1:] == bias.shape != shape[:1]
            for shape, bias in zip(weights.values(), biases.values(), strict=True)
        )

    def _has(self, name: str) -> bool:
        return self._source.find(name) is not None

    def _candidates(
        self, variable: VariableSpec, names: tuple[str, ...], *, renamed: bool
    ) -> Iterator[_Candidate]:
        """Yields what may give the variable its value, in order of precedence."""
        if self._config.use_ema and variable.state is StateClass.weights:
            averages = [moving_average(name, self._names) for name in names]
            if None not in averages:
                averaged = tuple(filter(None, averages))
                yield variable, averaged, ("its moving average",)
        if not self._needs_average(variable):
            yield variable, names, ()
        if variable.partition is not None and len(names) == 1:
            # Some writers saved the parts one by one.
            part = replace(variable, partition=None)
            yield part, (self._translator.renames.apply(variable.name),), ()
        if variable.shared_by and not renamed:
            # The source's optimizer may keep it for another group of variables.
            leaf = re.sub(r"_\d+$", "", variable.full_name.rpartition("/")[2])
            like = re.compile(rf"(.*/)?{re.escape(leaf)}(_\d+)?")
            alike = [name for name in self._source.tensors if like.fullmatch(name)]
            if len(alike) == 1:
                yield variable, (alike[0],), (f"the source's only {leaf}",)

    def _miss(
        self, variable: VariableSpec, names: Sequence[str], *, renamed: bool, reason: str = ""
    ) -> TensorChoice:
        averaged = self._needs_average(variable)
        missing = (
            name
            for name in names
            if (moving_average(name, self._names) if averaged else self._source.find(name)) is None
        )
        name = names[0] if reason else next(missing)
        wanted = f"{name}{EMA_SUFFIX}" if averaged else name
        owner = self._owners.get(variable.full_name)
        other = f" {wanted!r}" if wanted != variable.full_name else ""
        if not (reason or renamed) and variable.state in _OF_OPTIMIZERS:
            reason = self._source.unnamed_slots or (_UNTRAINED if self._source.layers else "")
        if self._codes.layout and not owner:
            reason = f"some of its weights are quantized ({self._codes.layout}): {REMEDY}"
        if averaged and self._source.layers:
            reason = self._source.unnamed_slots or _NUMBERED
        if self._config.missing is Missing.init or (
            variable.shared_by and not renamed and not self._is_included_by_name(variable)
        ):
            return TensorChoice(notes=(f"no tensor{other}: initialised",))
        # The parts of one variable miss the same tensor once.
        self._misses[variable.full_name] = Miss(
            variable.full_name,
            wanted,
            variable.full_shape,
            owner=owner,
            reason=reason,
        )
        return TensorChoice(notes=(f"no tensor{other}",))

    def problems(self, variables: Sequence[VariableSpec]) -> list[Problem]:
        """Returns the problems of all the variables that were matched."""
        names = [variable.full_name for variable in variables]
        problems: list[Problem] = []
        # A scaffold that claims nothing uses no rule; that it claims nothing is reported already.
        if names:
            for part, rules in self._translator.unused().items():
                problems += [unused_rule(f"{self._key}.{part}", rule, names) for rule in rules]
        problems += self._codes.unmerged(self.taken)
        problems += missing_problems(
            self._key,
            self._source,
            tuple(self._misses.values()),
            taken=self.taken,
        )
        return problems + combined(self._key, self._misfits)

    def _is_included_by_name(self, variable: VariableSpec) -> bool:
        include = self._config.variables.include
        names = (variable.full_name, variable.address)
        return any(compile_pattern(pattern).matches(name) for pattern in include for name in names)

    def _needs_average(self, variable: VariableSpec) -> bool:
        trains = variable.trainable or variable.frozen
        return self._config.use_ema and variable.state is StateClass.weights and trains
