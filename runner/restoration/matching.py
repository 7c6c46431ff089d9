"""Finds the tensors in a scaffold's checkpoint for each variable that the scaffold claims."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.config.choices import Missing
from runner.config.schema import ScaffoldConfig
from runner.errors import Problem
from runner.restoration.fitting import Fitter, MisfitError, SourceTensor
from runner.restoration.named_conversions import NAMED_CONVERSIONS
from runner.restoration.patterns import Renames, compile_pattern
from runner.restoration.problems import (
    Miss,
    bad_expressions,
    combined,
    missing_problems,
    some,
    unknown_conversions,
    unused_rule,
)
from runner.restoration.variables import EMA_SUFFIX, MovingAverages, StateClass, VariableSpec


@dataclass(frozen=True)
class Match:
    """What a checkpoint gives to one variable: a piece, or notes on why there is none."""

    piece: SourceTensor | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Matches:
    """What a checkpoint gives to a scaffold's variables.

    Attributes:
      by_variable: variable name -> match, for every variable given.
      problems: everything that is wrong.
      unused: the checkpoint's tensors that no variable takes.
    """

    by_variable: Mapping[str, Match]
    problems: tuple[Problem, ...]
    unused: tuple[str, ...] = ()


def match(
    scaffold: str,
    config: ScaffoldConfig,
    source: CheckpointSpec,
    variables: Sequence[VariableSpec],
    owners: Mapping[str, str],
) -> Matches:
    """Matches the variables that a scaffold claims with the tensors of its checkpoint.

    `owners` are those of slots and averages, see `owners_of`.
    """
    bad = bad_expressions(scaffold, config)
    if bad:
        bad += unknown_conversions(scaffold, config)
        return Matches(
            {variable.name: Match() for variable in variables}, tuple(bad), (*source.tensors,)
        )
    matcher = _Matcher(config, source, owners, Fitter(scaffold, config))
    found = [matcher.match(variable) for variable in variables]
    return Matches(
        {
            variable.name: _with_shared(each, variable, matcher.takers)
            for variable, each in zip(variables, found, strict=True)
        },
        tuple(matcher.problems(scaffold, variables)),
        tuple(name for name in source.tensors if name not in matcher.takers),
    )


class _Matcher:
    """Matches one variable after the other, and collects the problems."""

    def __init__(
        self,
        config: ScaffoldConfig,
        source: CheckpointSpec,
        owners: Mapping[str, str],
        fitter: Fitter,
    ) -> None:
        self._config, self._source, self._owners, self._fitter = config, source, owners, fitter
        self._renames = Renames(config.rename)
        names = (*source.tensors, *source.aliases)
        self._averages = MovingAverages(names if config.use_ema else ())
        self._misses: dict[str, Miss] = {}
        self._misfits: dict[str, dict[str, Problem]] = {}
        self._found: list[str] = []
        # Tensor -> the variables that take it, in order.
        self.takers: dict[str, dict[str, None]] = {}

    def match(self, variable: VariableSpec) -> Match:
        """Returns what the checkpoint gives to the variable."""
        try:
            return self._match(variable)
        except MisfitError as error:
            self._misfits.setdefault(error.kind, {})[variable.full_name] = error.problem
            return Match()

    def _match(self, variable: VariableSpec) -> Match:
        # The rules for a slot or an average are those of the variable that it belongs to.
        whole = variable.full_name
        owner = self._owners.get(whole)
        rule_name = owner or whole
        rules = self._fitter.rules(rule_name, linear=owner is not None)
        exact = self._renames.exact(variable.full_name) if owner else None
        renamed = exact or self._renames.find(rule_name)
        if rules.convert is not None and rules.convert not in NAMED_CONVERSIONS:
            return Match()  # A problem of its own.
        names = self._fitter.names(rules, renamed or rule_name)
        if owner and exact is None:
            names = tuple(name + variable.full_name.removeprefix(owner) for name in names)
        names, notes = self._averaged(variable, names)
        tensors = [self._tensor(name) for name in names]
        if tensors == [None] and variable.partition is not None:
            # Some writers saved the parts one by one.
            part = self._tensor(self._renames.apply(variable.name))
            if part is not None:
                variable, tensors = replace(variable, partition=None), [part]
        if tensors == [None] and renamed is None and variable.kept_for:
            tensors, notes = self._kept_for(variable)
            if tensors == [None] and not self._is_named(variable):
                return Match(notes=notes)
        if None in tensors:
            wanted = names[tensors.index(None)]
            return self._missing(variable, wanted, renamed is not None, len(names) == 1)
        known = [tensor for tensor in tensors if tensor is not None]
        piece, fitted = self._fitter.fit(variable, known, rules)
        for name in piece.names if piece else ():
            self.takers.setdefault(name, {})[whole] = None
        if renamed is None:
            self._found.append(variable.full_name)
        return Match(piece, (*notes, *fitted))

    def problems(self, scaffold: str, variables: Sequence[VariableSpec]) -> list[Problem]:
        """Returns the problems of all the variables that were matched."""
        key = f"scaffolds.{scaffold}"
        names = [variable.full_name for variable in variables]
        problems = unknown_conversions(scaffold, self._config)
        # A scaffold that claims nothing uses no rule; that it claims nothing is reported already.
        if names:
            unused = {"rename": self._renames.unused(), **self._fitter.unused()}
            for part, rules in unused.items():
                problems += [unused_rule(f"{key}.{part}", rule, names) for rule in rules]
        if self._config.missing is Missing.error and self._misses:
            misses, taken = tuple(self._misses.values()), self.takers.keys()
            problems += missing_problems(scaffold, self._source, misses, self._found, taken)
        for kind, found in self._misfits.items():
            problems += combined(key, kind, found)
        return problems

    def _tensor(self, name: str) -> TensorSpec | None:
        return self._source.find(name)

    def _kept_for(self, variable: VariableSpec) -> tuple[list[TensorSpec | None], tuple[str, ...]]:
        """Finds what the source's optimizer kept, under the name of another group of variables."""
        leaf = re.sub(r"_\d+$", "", variable.full_name.rpartition("/")[2])
        same = re.compile(rf"(.*/)?{re.escape(leaf)}(_\d+)?")
        found = [name for name in self._source.tensors if same.fullmatch(name)]
        if len(found) == 1:
            return [self._source.tensors[found[0]]], (f"the source's only {leaf}",)
        held = f"the source has {some(found)}; rename it to one of them" if found else "none"
        return [None], (f"no tensor {variable.full_name!r}, {held}: initialised",)

    def _is_named(self, variable: VariableSpec) -> bool:
        include = self._config.variables.include
        return any(compile_pattern(each).fullmatch(variable.full_name) for each in include)

    def _averaged(
        self, variable: VariableSpec, names: tuple[str, ...]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the names of the tensors to take, and notes: of the averages with `use_ema`."""
        if not self._config.use_ema or variable.state is not StateClass.WEIGHT:
            return names, ()
        averages = [self._averages.find(name) for name in names]
        known = tuple(each for each in averages if each is not None)
        if len(known) == len(names):
            return known, ("its moving average",)
        if not variable.trainable and not variable.frozen:
            return names, ("no moving average is kept of what does not train",)
        return tuple(f"{name}{EMA_SUFFIX}" for name in names), ()

    def _missing(self, variable: VariableSpec, wanted: str, renamed: bool, alone: bool) -> Match:
        owner, looked_up = self._owners.get(variable.full_name), wanted
        renameable, cause, remedy = owner is None and alone, "", ""
        if self._config.use_ema and wanted.endswith(EMA_SUFFIX) and owner is None:
            plain = wanted.removesuffix(EMA_SUFFIX)
            if self._tensor(plain) is None:
                looked_up = plain
            else:
                renameable = False
                cause = "use_ema asks for moving averages, and there is none of that name"
                remedy = (
                    f"set ++{self._fitter.key}.use_ema=false; an average of another name is then "
                    "taken by a rename to it: {VARIABLE: AVERAGE}"
                )
        shape = variable.full_shape
        miss = Miss(variable.full_name, looked_up, shape, renamed, owner, renameable, cause, remedy)
        # The parts of one variable miss the same tensor once.
        self._misses[variable.full_name] = miss
        other = f" {wanted!r}" if wanted != variable.full_name else ""
        initialised = ": initialised" if self._config.missing is Missing.init else ""
        return Match(notes=(f"no tensor{other}{initialised}",))


def _with_shared(
    found: Match, variable: VariableSpec, takers: Mapping[str, Iterable[str]]
) -> Match:
    """Adds a note where one tensor gives several variables their value, other than parts of one."""
    notes = []
    for name in found.piece.names if found.piece else ():
        others = [each for each in takers[name] if each != variable.full_name]
        if others:
            notes.append(f"{name} is also taken by {some(others)}")
    return Match(found.piece, (*found.notes, *notes)) if notes else found
