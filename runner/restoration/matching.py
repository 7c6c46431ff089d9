"""Finds for each variable that a scaffold claims its tensors in the scaffold's checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.config.choices import Missing
from runner.config.schema import ScaffoldConfig
from runner.errors import Problem
from runner.restoration.fitting import Fitter, MisfitError, ReadVocabulary
from runner.restoration.layouts import Target
from runner.restoration.ownership import some
from runner.restoration.patterns import Renames, compile_pattern
from runner.restoration.plan import SourceTensor
from runner.restoration.problems import (
    Miss,
    bad_expressions,
    combined,
    missing_problems,
    unknown_conversions,
    unused_rule,
)
from runner.restoration.states import EMA_SUFFIX, MovingAverages, Owner
from runner.restoration.variables import StateClass, VariableSpec


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
      problems: what stands in the way.
    """

    by_variable: Mapping[str, Match]
    problems: tuple[Problem, ...]


def match(
    scaffold: str,
    config: ScaffoldConfig,
    source: CheckpointSpec,
    variables: Sequence[VariableSpec],
    owners: Mapping[str, Owner],
    vocabulary: ReadVocabulary,
) -> Matches:
    """Matches the variables that a scaffold claims with the tensors of its checkpoint.

    Args:
      scaffold: its name.
      config: its configuration.
      source: its checkpoint.
      variables: the variables that it claims.
      owners: the owners of slots and averages, by their full name.
      vocabulary: reads a vocabulary file.
    """
    bad = bad_expressions(scaffold, config)
    if bad:
        bad += unknown_conversions(scaffold, config)
        return Matches({each.name: Match() for each in variables}, tuple(bad))
    renames, fitter = Renames(config.rename), Fitter(scaffold, config, vocabulary)
    matcher = _Matcher(scaffold, config, source, owners, renames, fitter)
    by_variable = {each.name: matcher.match(each) for each in variables}
    return Matches(_with_shared(by_variable, variables), tuple(matcher.problems(variables)))


class _Matcher:
    def __init__(
        self,
        scaffold: str,
        config: ScaffoldConfig,
        source: CheckpointSpec,
        owners: Mapping[str, Owner],
        renames: Renames,
        fitter: Fitter,
    ) -> None:
        self._scaffold, self._config, self._source = scaffold, config, source
        self._owners, self._renames, self._fitter = owners, renames, fitter
        self._averages = MovingAverages([*source.tensors, *source.aliases])
        self._misses: dict[str, Miss] = {}
        self._misfits: dict[str, dict[str, Problem]] = {}
        self._found: dict[str, str] = {}
        self._taken: set[str] = set()

    def match(self, variable: VariableSpec) -> Match:
        owner = self._owners.get(variable.full_name)
        rule_name = owner.name if owner else variable.full_name
        leaf = rule_name.rpartition("/")[2]
        rules = self._fitter.rules(rule_name)
        exact = self._renames.exact(variable.full_name) if owner else None
        renamed = exact or self._renames.find(rule_name)
        suffix = owner.suffix if owner and exact is None else ""
        if not self._fitter.knows(rules):
            return Match()  # The name of the conversion is a problem of its own.
        try:
            names = self._fitter.names(rules, leaf, renamed or rule_name)
        except ValueError as error:
            self._misfit("name", variable, self._bad_name(variable, error))
            return Match()
        names = tuple(f"{name}{suffix}" for name in names)
        notes: tuple[str, ...] = ()
        if self._config.use_ema and variable.state is StateClass.WEIGHT:
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
            wanted, alone = names[tensors.index(None)], len(names) == 1
            return self._missing(variable, wanted, owner, renamed is not None, alone)
        known = [each for each in tensors if each is not None]
        aliased = [
            f"{each.name} is also called {name}"
            for name, each in zip(names, known, strict=True)
            if each.name != name and name in self._source.aliases
        ]
        target = Target(leaf, variable.full_shape, linear=owner is not None)
        try:
            piece, fitted = self._fitter.fit(variable, known, rules, target)
        except MisfitError as error:
            self._misfit(error.kind, variable, error.problem)
            return Match()
        self._taken.update(each.name for each in known)
        if renamed is None:
            self._found[variable.full_name] = known[0].name
        return Match(piece, (*notes, *aliased, *fitted))

    def problems(self, variables: Sequence[VariableSpec]) -> list[Problem]:
        key = f"scaffolds.{self._scaffold}"
        names = [each.full_name for each in variables]
        problems = unknown_conversions(self._scaffold, self._config)
        # A scaffold that claims nothing uses no rule; why it claims nothing is told elsewhere.
        unused = {"rename": self._renames.unused()} if names else {}
        if names:
            unused |= {part: found.unused() for part, found in self._fitter.patterns.items()}
        for part, rules in unused.items():
            problems += [unused_rule(f"{key}.{part}", rule, names) for rule in rules]
        if self._config.missing is Missing.error and self._misses:
            problems += missing_problems(
                self._scaffold,
                self._config,
                self._source,
                tuple(self._misses.values()),
                self._found,
                frozenset(self._taken),
            )
        for kind, found in self._misfits.items():
            problems += combined(key, kind, found)
        return problems

    def _tensor(self, name: str) -> TensorSpec | None:
        tensors = self._source.tensors
        return tensors.get(name) or tensors.get(self._source.aliases.get(name, ""))

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
        averages = [self._averages.find(name) for name in names]
        known = tuple(each for each in averages if each is not None)
        if len(known) == len(names):
            return known, ("its moving average",)
        if not variable.trainable and not variable.frozen:
            return names, ("no moving average is kept of what does not train",)
        return tuple(f"{name}{EMA_SUFFIX}" for name in names), ()

    def _missing(
        self,
        variable: VariableSpec,
        wanted: str,
        owner: Owner | None,
        renamed: bool,
        alone: bool,
    ) -> Match:
        cause, remedy, shown, renameable = "", "", wanted, owner is None and alone
        if self._config.use_ema and wanted.endswith(EMA_SUFFIX) and owner is None:
            plain = wanted.removesuffix(EMA_SUFFIX)
            if self._tensor(plain) is not None:
                renameable = False
                cause = f"use_ema asks for moving averages, and of {plain!r} there is none"
                remedy = (
                    f"set ++scaffolds.{self._scaffold}.use_ema=false; an average of another name "
                    f"is then taken by a rename to it: {{{variable.full_name}: NAME}}"
                )
            else:
                shown = plain
        # The parts of one variable miss the same tensor once.
        self._misses[variable.full_name] = Miss(
            variable.full_name,
            shown,
            variable.full_shape,
            renamed,
            owner.name if owner else None,
            renameable,
            cause,
            remedy,
        )
        return Match(notes=(f"no tensor {wanted!r}: initialised",))

    def _misfit(self, kind: str, variable: VariableSpec, problem: Problem) -> None:
        self._misfits.setdefault(kind, {})[variable.full_name] = problem

    def _bad_name(self, variable: VariableSpec, error: ValueError) -> Problem:
        return Problem(
            f"scaffolds.{self._scaffold}: {variable.full_name} cannot be converted",
            str(error),
            f"map it in scaffolds.{self._scaffold}.rename to the name that is asked for",
        )


def _with_shared(
    by_variable: Mapping[str, Match], variables: Sequence[VariableSpec]
) -> dict[str, Match]:
    """Adds a note where one tensor gives several variables their value, parts of one aside."""
    users: dict[str, list[str]] = {}
    for variable in variables:
        piece = by_variable[variable.name].piece
        for name in piece.names if piece else ():
            entry = users.setdefault(name, [])
            if variable.full_name not in entry[-1:]:
                entry.append(variable.full_name)
    shared = {name: names for name, names in users.items() if len(set(names)) > 1}
    result = dict(by_variable)
    for variable in variables if shared else ():
        found = by_variable[variable.name]
        for name in found.piece.names if found.piece else ():
            if name in shared:
                others = [each for each in shared[name] if each != variable.full_name]
                note = f"{name} is also taken by {some(others)}"
                result[variable.name] = replace(found, notes=(*found.notes, note))
    return result
