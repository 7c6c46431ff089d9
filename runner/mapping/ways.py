"""Other ways for layers that are not decided: exchanges, parts of fused tensors, what is left."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from runner.mapping.candidates import Candidate
from runner.mapping.decision import Decision
from runner.mapping.decisions import Decisions
from runner.mapping.layer_calls import ModelCalls
from runner.mapping.modules import ROLES
from runner.mapping.trials import Trials

# How many ways there are for layers side by side, at most.
_MOST_OF_GROUP = 80
# How many others a layer's candidate is compared with: three parts have five other orders.
_MOST_OTHERS = 5
# How many candidates that are computed close to one are tried.
_MOST_ALIKE = 12
# Index of a call -> what it takes.
Changes: TypeAlias = Mapping[int, Candidate]
# Yields changes that differ in one thing from others.
Step: TypeAlias = Callable[[Changes], Iterable[Changes]]


class Ways:
    """Finds other ways for layers side by side."""

    def __init__(self, decisions: Decisions, trials: Trials, calls: ModelCalls) -> None:
        """Takes the decisions, the trials, and the calls."""
        self._decisions, self._trials, self._calls = decisions, trials, calls
        self._rivals: dict[object, list[Candidate]] = {}

    def rivals(self, at: int, candidate: Candidate) -> list[Candidate]:
        """Returns candidates that agree with their own records too, whatever is right.

        They are the other parts of a fused module, the modules of a fused layer in other orders,
        and a table with or without a row added.
        """
        key = at, candidate.key
        if key not in self._rivals:
            some = [
                option
                for option in self._decisions.all(at)
                if option.key != candidate.key
                and (
                    (option.cut and option.family == candidate.family)
                    or (option.joined == "sum" and option.tensors[0] == candidate.tensors[0])
                    or (candidate.joined == "sum" and option.tensors == candidate.tensors[:1])
                    or (candidate.joined == "concat" and {*option.modules} == {*candidate.modules})
                )
            ]
            self._rivals[key] = self._agreeing(at, some)
        return self._rivals[key]

    def _agreeing(self, at: int, some: Sequence[Candidate]) -> list[Candidate]:
        """Returns the candidates that agree with their own records."""
        run = self._calls.again(at)
        agreeing = [option for option in some if self._trials.attempt(at, run, option).agrees]
        self._trials.load(self._decisions.made[at].candidate)
        return agreeing

    def _alike(self, decision: Decision) -> list[Candidate]:
        """Returns free candidates beside one that agree with their own records, such as experts."""
        at, key = decision.call, (decision.call, None)
        if key not in self._rivals:
            free = [
                option
                for option in self._decisions.near(at)
                if not option.cut and self._trials.comparable(at, option)
                if not self._decisions.is_taken(option, {at})
            ]
            self._rivals[key] = self._agreeing(at, free[:_MOST_ALIKE])
        return self._rivals[key]

    def _other_divisions(self, decision: Decision) -> list[Candidate]:
        """Returns parts of a fused module by other numbers of heads, which agree as well."""
        candidate = decision.candidate
        return [
            option
            for option in self._decisions.all(decision.call)
            if candidate.cut and option.cut and option.modules == candidate.modules
            if option.family != candidate.family
        ]

    def exchanges(self, group: Sequence[Decision], reader: int) -> Iterator[Changes]:
        """Yields the exchanges of layers side by side, and with those that no record speaks for."""
        made, is_equal = self._decisions.made, self._trials.is_equal
        for several in itertools.chain(self._beside(group, reader), self._elsewhere(group)):
            changes = {at: option for at, option in several.items() if option != made[at].candidate}
            if not all(is_equal(made[at].candidate, option) for at, option in changes.items()):
                yield changes

    def _beside(self, group: Sequence[Decision], reader: int) -> Iterator[Changes]:
        """Yields the exchanges within layers side by side, and other ways of ones that wait."""
        parts = [*self.parts(group, reader)]
        for at, name in (part for part in parts if part[1]):
            now = {decision.call: decision.candidate for decision in group}
            yield from itertools.islice(self.steps(now, at, name), _MOST_ALIKE)
        for one, two in itertools.combinations(group, 2):
            first = self._decisions.like(one.call, two.candidate)
            second = self._decisions.like(two.call, one.candidate)
            if first and second:
                yield {one.call: first, two.call: second}
        for decision in (one for one in group if (one.call, "") in parts):
            options = self._decisions.in_order(decision.call)
            if decision.record:
                options = [*self.rivals(decision.call, decision.candidate)]
                options += [decision.close] if decision.close else []
            others = (
                option
                for option in options
                if option.key != decision.candidate.key
                and not self._decisions.is_taken(option, {decision.call})
            )
            yield from (
                {decision.call: option} for option in itertools.islice(others, _MOST_OTHERS)
            )

    def _elsewhere(self, group: Sequence[Decision]) -> Iterator[Changes]:
        """Yields the exchanges, in each layout, with layers anywhere that no record speaks for."""
        open_ = [decision for decision in group if decision.is_unrecorded]
        within = {decision.call for decision in open_}
        for one, two in itertools.product(open_, [*self._decisions.made.values()]):
            if not two.is_unrecorded or (two.call in within and two.call <= one.call):
                continue
            if one.candidate.cut or two.candidate.cut:
                # The parts of a fused module belong together.
                yield from self._fused(one.candidate.family, two.candidate.family)
                continue
            first = self._decisions.laid_out(one.call, two.candidate)
            second = self._decisions.laid_out(two.call, one.candidate)
            for kind in (kind for kind in first if kind in second):
                yield {one.call: first[kind], two.call: second[kind]}

    def _fused(self, *families: object) -> Iterator[Changes]:
        """Yields the exchange of all parts of one fused module with all parts of another."""
        made = self._decisions.made
        calls, others = (
            [at for at, one in made.items() if one.candidate.cut and one.candidate.family == family]
            for family in families
        )
        pairs = [*zip(calls, others, strict=False), *zip(others, calls, strict=False)]
        moved = {at: self._decisions.like(at, made[other].candidate) for at, other in pairs}
        changes = {at: candidate for at, candidate in moved.items() if candidate}
        if len(changes) == len(calls) + len(others):
            yield changes

    def assignments(self, groups: Sequence[Sequence[Decision]]) -> Iterator[Changes]:
        """Yields other assignments of groups of layers side by side, of one or of two at once."""
        yield from itertools.chain.from_iterable([*map(self._assignments, groups)])
        for first, second in itertools.combinations(groups, 2):
            for one in itertools.islice(self._assignments(first, second), _MOST_ALIKE):
                for two in itertools.islice(self._assignments(second, first), _MOST_ALIKE):
                    if not any(a.shares(b) for a in one.values() for b in two.values()):
                        yield {**one, **two}

    def _assignments(
        self, group: Sequence[Decision], changed: Sequence[Decision] = ()
    ) -> Iterator[Changes]:
        """Yields other assignments of layers side by side, closest to their order first.

        What the layers in `changed` take is free.
        """
        calls = {decision.call for decision in (*group, *changed)}
        choices = [self._choices(decision, calls) for decision in group]
        # A record that is only near may be of more than the layer: without it, this way is another.
        is_near = any(decision.handed_on and not decision.agrees for decision in group)
        now = () if is_near else tuple(decision.candidate.key for decision in group)
        # Layers side by side take parts of one module in one way, before anything else.
        families = Counter(o.family for some in choices for o in some if o.cut)
        fused = [[[o for o in some if o.family == one] for some in choices] for one in families]
        orders = [*map(_by_rank, fused), _by_rank(choices)]
        apart = (
            several
            for several in itertools.chain.from_iterable(orders)
            if tuple(option.key for option in several) != now
            and not any(one.shares(two) for one, two in itertools.combinations(several, 2))
        )
        for several in itertools.islice(apart, _MOST_OF_GROUP):
            yield {d.call: option for d, option in zip(group, several, strict=True)}

    def _choices(self, decision: Decision, calls: Collection[int]) -> list[Candidate]:
        """Returns what a layer could take where what `calls` take is free."""
        at = decision.call
        # Two that read one input agree with the record of one module, and one of them is another.
        if decision.agrees and not self._decisions.is_taken(decision.candidate, {at}):
            others = (self._decisions.made[call].candidate for call in calls)
            some = [like for other in others if (like := self._decisions.like(at, other))]
            some += self.rivals(at, decision.candidate)
            some += [*self._other_divisions(decision), *self._alike(decision)]
        else:
            known = decision.candidate.taken
            seen = self._decisions.seen(at)
            some = [
                option
                for option in self._decisions.in_order(at, calls)
                if all(option.taken[name] == known[name] for name in seen)
            ]
        return [option for option in some if not self._decisions.is_taken(option, {*calls})]

    def in_steps(
        self, groups: Sequence[Sequence[Decision]], reader: int
    ) -> tuple[Changes, list[Step]]:
        """Returns what some layers take, and the steps that change it.

        They are of groups, and all undecided parameters without a layer.
        """
        open_ = self._decisions.open(self._decisions.depends(reader))
        some = {decision.call for group in groups for decision in group}
        some |= {call for call, name in self.parts(open_, reader) if name}
        group = [decision for decision in open_ if decision.call in some]
        # Few things are a parameter without a layer; a layer may be a part of any larger tensor.
        parts = sorted(self.parts(group, reader), key=lambda part: not part[1])
        steps: list[Step] = [partial(self.steps, at=at, name=name) for at, name in parts]
        return {decision.call: decision.candidate for decision in group}, steps

    def parts(self, group: Sequence[Decision], reader: int) -> Iterator[tuple[int, str]]:
        """Yields what can take something else: a call, or one of its variables alone.

        Alone are those without a layer, and a bias that the module of its kernel lacks. A reader
        depends on these variables, and nothing has decided on them.
        """
        for decision in group:
            call, depends = decision.call, self._decisions.depends(reader)
            names = self._decisions.names(call, depends & ~decision.seen)
            is_layer = decision.record or any(name.rpartition("/")[2] in ROLES for name in names)
            apart = ["", *(name for name in self._decisions.apart(call) if name in names)]
            yield from ((call, name) for name in (apart if is_layer else names))

    def steps(self, now: Changes, at: int, name: str = "") -> Iterator[Changes]:
        """Returns what layers take if one, or one of its variables, takes something else.

        What has that already takes in exchange what this one had.
        """
        return self._of_variable(now, at, name) if name else self._of_layer(now, at)

    def _of_layer(self, now: Changes, at: int) -> Iterator[Changes]:
        known = now[at]
        alone = self._decisions.alone(known)
        for option in self._choices(self._decisions.made[at], now):
            others = [one for one in now if one != at and now[one].shares(option)]
            likes = [(one, self._decisions.like(one, alone)) for one in others]
            moved = {one: like for one, like in likes if like and not like.shares(option)}
            if option.key == known.key or len(moved) < len(others):
                continue
            changes = {at: option, **moved}
            # With the biases that are not of their modules, and without.
            yield {**now, **changes}
            stay = {call: self._decisions.with_biases(changes[call], now[call]) for call in changes}
            if stay != changes:
                yield {**now, **stay}

    def _of_variable(self, now: Changes, at: int, name: str) -> Iterator[Changes]:
        had = now[at].taken[name]
        for taken in self._decisions.singly(at, name):
            holders = [
                (call, other)
                for call, candidate in now.items()
                for other, its in candidate.taken.items()
                if (call, other) != (at, name) and {*its.tensors} & {*taken.tensors}
            ]
            is_taken = self._decisions.is_taken(Candidate({name: taken}, ()), {*now})
            if taken == had or is_taken or len(holders) > 1:
                continue
            changes = {**now, at: self._decisions.with_one(now[at], name, taken)}
            for call, other in holders:
                its = self._decisions.singly(call, other)
                fitting = [option for option in its if option.tensors == had.tensors]
                step = now[call].taken[other].step
                alike = [option for option in fitting if option.step == step]
                if not fitting or other in self._decisions.seen(call):
                    break
                first = (alike or fitting)[0]
                changes[call] = self._decisions.with_one(changes[call], other, first)
            else:
                yield changes


def _by_rank(choices: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yields the combinations of choices, in the order of the first ones."""
    if math.prod(map(len, choices)) > 20000:
        choices = [some[:20] for some in choices[:3]] + [some[:2] for some in choices[3:]]
    numbers = itertools.product(*(range(len(some)) for some in choices))
    for at in sorted(numbers, key=lambda some: (sum(some), some)):
        yield tuple(some[number] for some, number in zip(choices, at, strict=True))
