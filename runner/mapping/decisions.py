"""Keeps what the variables of each call take so far, and what else they could take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.mapping.candidates import Candidate, candidates, chosen, constant, named, ordered
from runner.mapping.dataflow import LayerCall
from runner.mapping.decision import Decision, Snapshot
from runner.mapping.layouts import Shape
from runner.mapping.module_fitting import Taken
from runner.mapping.modules import BIAS, ROLES
from runner.mapping.source import RecordedCheckpoint, Variable

# Stands for the model's outputs in the place of a call.
OUTPUTS = -1


class Decisions:
    """The decisions on all calls.

    Attributes:
      calls: the calls of layers, in order.
      made: index of a call -> decision on the variables that it reads first.
      kinds: the layouts and cuts that agreed, with their numbers.
      refuted: the layouts and cuts, by names, that did not.
      place: the last module that agreed, in the order of computation.
    """

    def __init__(
        self,
        calls: Sequence[LayerCall],
        read_by_outputs: int,
        source: RecordedCheckpoint,
        *,
        variables: Mapping[str, Variable],
        proposal: Mapping[str, Taken],
        choices: Mapping[str, Sequence[Taken]],
    ) -> None:
        self.calls, self._read_by_outputs, self._source = calls, read_by_outputs, source
        self._variables, self._proposal, self._choices = variables, proposal, choices
        self._bits = {name: 1 << at for at, name in enumerate(variables)}
        self.made: dict[int, Decision] = {}
        self.kinds, self.refuted = Counter[tuple[str, ...]](), set[tuple[str, ...]]()
        self.place = 0
        self._options: dict[int, list[Candidate]] = {}
        self._single: dict[str, list[Taken]] = {}
        self._fitting: dict[int, dict[frozenset[str], list[Candidate]]] = {}

    def snapshot(self) -> Snapshot:
        """Returns the decisions as they are."""
        made = {at: replace(decision) for at, decision in self.made.items()}
        return Snapshot(made, self.kinds.copy(), {*self.refuted}, self.place)

    def restore(self, saved: Snapshot) -> None:
        """Takes the decisions of a snapshot again."""
        self.made = saved.made
        self.kinds, self.refuted, self.place = saved.kinds, saved.refuted, saved.place

    def depends(self, reader: int) -> int:
        """Returns the variables on which a call's inputs, or the outputs, depend."""
        return self._read_by_outputs if reader == OUTPUTS else self.calls[reader].depends

    def path(self, at: int) -> str:
        """Returns the name of a layer, as its variables have it."""
        if at == OUTPUTS:
            return "the outputs"
        names = self.calls[at].variables
        return names[0].rpartition("/")[0] if names else str(self.calls[at].layer.path)

    def unread(self) -> tuple[str, ...]:
        """Returns the variables on which no output depends."""
        return tuple(n for n, bit in self._bits.items() if not bit & self._read_by_outputs)

    def others(self, at: int, name: str) -> list[Taken]:
        """Returns what else a variable of a call could take."""
        return [option.taken[name] for option in self.in_order(at)]

    def read(self, at: int, reader: int) -> list[str]:
        """Returns the undecided variables of a call on which a reader depends."""
        return self.names(at, self.depends(reader) & ~self.made[at].seen)

    def seen(self, at: int) -> set[str]:
        """Returns the variables of a call that are decided."""
        return {*self.names(at, self.made[at].seen)}

    def names(self, at: int, mask: int) -> list[str]:
        """Returns the variables of a call that are among some, given as bits."""
        return [name for name in self.calls[at].variables if self._bits[name] & mask]

    def singly(self, at: int, name: str) -> list[Taken]:
        """Returns what a variable could take if it were the only one of its call.

        Closest first: of its modules, of none with a record, by the order of computation.
        """
        if name not in self._single:
            variable = self._variables[name]
            options = candidates([variable], self._source)
            self._single[name] = [option.taken[name] for option in options if not option.cut]
            self._single[name] += filter(None, [constant(variable)])
        here = self.made[at].candidate.modules
        place = self._source.place[here[0]] if here else 0

        def distance(taken: Taken) -> tuple[bool, bool, int]:
            modules = self._source.modules_of(taken.tensors)
            places = [abs(self._source.place[module] - place) for module in modules]
            recorded = bool(modules) and self._source.has_record(modules)
            return not {*modules} <= {*here}, recorded, max(places, default=0)

        return sorted(self._single[name], key=distance)

    def apart(self, at: int) -> list[str]:
        """Returns the biases of a call that its module lacks, and a parameter elsewhere may be."""
        candidate = self.made[at].candidate
        return [
            name
            for name in self._apart(candidate)
            if candidate.taken[name].tensors or self._has_spare(at, name)
        ]

    def _apart(self, candidate: Candidate) -> list[str]:
        """Returns the biases that are not of the module of the kernel."""
        kernels = {
            n for v, one in candidate.taken.items() if not self._is_bias(v) for n in one.tensors
        }
        beside = {name for kernel in kernels for name in self._source.beside.get(kernel, ())}
        return [
            name
            for name, one in candidate.taken.items()
            if kernels and self._is_bias(name) and not {*one.tensors} & beside
        ]

    def alone(self, candidate: Candidate) -> Candidate:
        """Returns a candidate without the biases that are not of its module."""
        for name in self._apart(candidate):
            missing = constant(self._variables[name])
            if missing and candidate.taken[name].tensors:
                candidate = self.with_one(candidate, name, missing)
        return candidate

    def with_biases(self, candidate: Candidate, known: Candidate) -> Candidate:
        """Returns a candidate with the biases of another one, if its module has none."""
        biases = [known.taken[name] for name in self._apart(known)]
        for name, taken in zip(self._apart(candidate), biases, strict=False):
            candidate = self.with_one(candidate, name, taken)
        return candidate

    def _is_bias(self, name: str) -> bool:
        return ROLES.get(self._variables[name].leaf) == BIAS

    def _has_spare(self, at: int, name: str) -> bool:
        """Whether a parameter that is no part of a recorded layer may be a bias."""
        return any(
            not self._source.has_record([self._source.module_of[tensor]])
            or len(self._source.beside[tensor]) == 1
            for taken in self.singly(at, name)
            for tensor in taken.tensors
            if not self.is_taken(Candidate({name: taken}, ()), {at})
        )

    def with_one(self, candidate: Candidate, name: str, taken: Taken) -> Candidate:
        """Returns a candidate in which one variable takes something else."""
        some = {**candidate.taken, name: taken}
        modules = self._source.modules_of(name for one in some.values() for name in one.tensors)
        return replace(candidate, taken=some, modules=modules, is_named=False)

    def mask(self, at: int) -> int:
        """Returns the variables that a call reads first."""
        return sum(self._bits[name] for name in self.calls[at].variables)

    def shapes(self, at: int) -> dict[str, Shape]:
        """Returns variable of a call -> its dimensions."""
        return {name: self._variables[name].shape for name in self.calls[at].variables}

    def siblings(self, at: int) -> list[int]:
        """Returns the calls beside one, of layers of equal shapes."""
        call = self.calls[at]
        return [
            other
            for other, its in enumerate(self.calls)
            if other != at
            and its.depends == call.depends
            and its.variables
            and [*self.shapes(other).values()] == [*self.shapes(at).values()]
        ]

    def again(self, at: int) -> list[int]:
        """Returns the later calls of a layer that do not depend on what its first one reads."""
        layer, mask = self.calls[at].layer, self.mask(at)
        later = range(self.calls[at].end, len(self.calls))
        return [
            other
            for other in later
            if self.calls[other].layer is layer and not self.calls[other].depends & mask
        ]

    def beside(self, at: int) -> list[int]:
        """Returns the layers of equal shapes that read the input of one."""
        read = self.calls[at].inputs
        return [other for other in self.siblings(at) if self.calls[other].inputs == read]

    def open(self, mask: int) -> list[Decision]:
        """Returns the undecided decisions on which something depends, the latest first."""
        return [
            decision
            for at, decision in sorted(self.made.items(), reverse=True)
            if not decision.by and self.mask(at) & mask
        ]

    def groups(self, mask: int) -> Iterator[list[Decision]]:
        """Yields the undecided decisions side by side, or on parts of one fused module."""
        pending = self.open(mask)
        while pending:
            first = pending[0]
            beside = {first.call, *self.siblings(first.call)}
            fused = first.candidate.family if first.candidate.cut else None
            group = [
                decision
                for decision in pending
                if decision.call in beside
                or (decision.candidate.cut and decision.candidate.family == fused)
            ]
            pending = [decision for decision in pending if decision not in group]
            yield group[::-1]

    def is_reader(self, at: int) -> bool:
        """Whether a call can decide on layers before it."""
        decision, depends = self.made[at], self.calls[at].depends
        return bool(decision.record) and bool(self.open(depends))

    def all(self, at: int) -> list[Candidate]:
        """Returns all candidates of a call whose values can be made."""
        if at not in self._options:
            variables = [self._variables[name] for name in self.calls[at].variables]
            proposed = named(variables, self._proposal, self._source)
            if self._source.outlines:
                others = candidates(variables, self._source)
            else:
                others = chosen(variables, self._choices, self._source)
            self._options[at] = [
                option
                for option in ordered(others, proposed, variables, self._source)
                if all(
                    self._source.can_make(self._variables[name], taken)
                    for name, taken in option.taken.items()
                )
            ]
        return self._options[at]

    def in_order(self, at: int, changed: Collection[int] = ()) -> list[Candidate]:
        """Returns the candidates of a call, closest first: by names, then by computation.

        What the calls in `changed` take is free.
        """
        taken = [decision for call, decision in self.made.items() if call not in changed]

        def rank(candidate: Candidate) -> tuple[Any, ...]:
            places = (
                self._source.place[m] for m in candidate.modules if self._source.records_of([m])
            )
            # Where nothing is recorded, nothing is behind.
            place = max(places, default=self.place)
            # What another call takes without agreeing may be wrong there.
            users = (1 + d.agrees for d in taken if candidate.shares(d.candidate))
            used = max(users, default=0)
            known = -self.kinds[candidate.kind]
            is_part = candidate.cut is not None and not known
            order = is_part, place < self.place, abs(place - self.place), known
            is_proposed = candidate.is_named and candidate.kind not in self.refuted
            return used, not is_proposed, *order

        return sorted(self.all(at), key=rank)

    def near(self, at: int) -> list[Candidate]:
        """Returns the candidates of a call, those computed close to what it takes first."""

        def place(candidate: Candidate) -> int:
            return max((self._source.place[m] for m in candidate.modules), default=0)

        here = place(self.made[at].candidate)
        return sorted(self.all(at), key=lambda option: abs(place(option) - here))

    def like(self, at: int, candidate: Candidate) -> Candidate | None:
        """Returns the candidate of a call that takes what another call's candidate does."""
        alone = self.alone(candidate)
        wanted = alone.expressions
        option = next((option for option in self.all(at) if option.expressions == wanted), None)
        return self.with_biases(option, candidate) if option and alone is not candidate else option

    def laid_out(self, at: int, candidate: Candidate) -> dict[tuple[str, ...], Candidate]:
        """Returns layout -> the candidate of a call that takes another's tensors so."""
        if at not in self._fitting:
            variables = [self._variables[name] for name in self.calls[at].variables]
            # Without records, what names leave open is not all that fits.
            fitting = [] if self._source.outlines else candidates(variables, self._source)
            by_tensors: dict[frozenset[str], list[Candidate]] = {}
            for option in {o.key: o for o in [*self.all(at), *fitting]}.values():
                by_tensors.setdefault(frozenset(option.tensors), []).append(option)
            self._fitting[at] = by_tensors
        options = self._fitting[at].get(frozenset(candidate.tensors), [])
        wanted = candidate.tensors
        return {o.kind: o for o in sorted(options, key=lambda o: o.tensors == wanted)}

    def is_taken(self, option: Candidate, but: set[int]) -> bool:
        """Whether a call takes what a candidate takes, other than the calls in `but`."""
        return any(
            decision.candidate.shares(option) for at, decision in self.made.items() if at not in but
        )

    def joined(self, group: Sequence[Decision], changes: Mapping[int, Candidate]) -> set[int]:
        """Returns the calls of changes that the parts of one fused module beside them exclude."""
        return {
            at
            for at, candidate in changes.items()
            if candidate.modules != self.made[at].candidate.modules
            and any(
                beside.call != at and beside.candidate.family == self.made[at].candidate.family
                for beside in group
                if beside.candidate.cut
            )
        }
