"""Variables as the planner knows them: specs, classes of state, and which scaffolds claim them."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.checkpoints.reader import TensorSpec
from runner.config.choices import INTERNAL, WARM_STARTED, Collision, StateClass
from runner.config.schema import ScaffoldConfig
from runner.console import some_of
from runner.errors import Problem
from runner.planning.problems import bad_pattern, nearest_patterns
from runner.rules.patterns import Selected, select
from runner.runs.provenance import OF_MODEL

EMA_SUFFIX = "/ExponentialMovingAverage"
"""Ends the name of a moving average, as `tf.train.ExponentialMovingAverage` names it."""

_BY_NAME = (
    (re.compile(r"(.*/)?global_step"), StateClass.global_step),
    (re.compile(r"(.*/)?moving_(mean|variance)"), StateClass.batch_norm),
    (re.compile(r"(.*/)?seed_generator_state"), StateClass.random_state),
    (re.compile(r".*/ExponentialMovingAverage(_\d+)?"), StateClass.moving_averages),
)


@dataclass(frozen=True)
class Partition:
    """The part of a partitioned variable that one variable holds; checkpoints hold the whole.

    `name` and `shape` are the whole's; `offset` is where the part begins, for each dimension.
    """

    name: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]


@dataclass(frozen=True)
class VariableSpec:
    """A variable of the model's graph.

    Attributes:
      tensor: its name, shape and dtype.
      state: the kind of state it holds.
      trainable: whether the optimizer updates it.
      initializer: the operation that gives its value when no source does; `OF_MODEL` and a digest
        where the model brings the value along; empty for an eager variable, which has a value.
      frozen: whether it would train if its scaffold did not set `trainable: false`.
      partition: which part of a partitioned variable it is; None for a whole variable.
      shared_by: the full names of the variables for which an optimizer keeps it once, such as
        Adam's powers; empty for all other variables.
      layer: the class of its Keras layer, e.g. `Dense`; empty without one.
      flattened: the shape (height, width, channels) of the map that a flatten before its layer
        reads; empty without one.
      address: its name with the names of the functional sub-models that it is in, which Keras
        leaves out of `name`: patterns and rules may use either; empty where they are the same.
      axes: of the kernel of an `EinsumDense`, the axes of its inputs, then of its outputs.
    """

    tensor: TensorSpec
    state: StateClass
    trainable: bool
    initializer: str
    frozen: bool = False
    partition: Partition | None = None
    shared_by: tuple[str, ...] = ()
    layer: str = ""
    flattened: tuple[int, ...] = ()
    address: str = ""
    axes: tuple[int, ...] = ()

    @property
    def model_digest(self) -> str:
        """The digest of the value that the model brings along; empty without one."""
        return self.initializer.removeprefix(f"{OF_MODEL} ") if self.is_of_model else ""

    @property
    def is_of_model(self) -> bool:
        """Whether its first value was loaded or trained where the model was built."""
        return self.initializer.startswith(OF_MODEL)

    @property
    def name(self) -> str:
        """The name in the graph, which the plan shows."""
        return self.tensor.name

    @property
    def full_name(self) -> str:
        """The name that patterns and checkpoints use: the whole's for a part."""
        return (self.partition or self.tensor).name

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape that checkpoints use: the whole's for a part."""
        return (self.partition or self.tensor).shape


def classify(name: str, *, model: bool) -> StateClass:
    """Returns the class of state of the variable `name`.

    `model` is False for what was created while the training step was built, such as slots.
    """
    for pattern, state in _BY_NAME:
        if pattern.fullmatch(name):
            return state
    return StateClass.weights if model else StateClass.optimizer_slots


def owner_of(name: str, variables: Container[str]) -> str | None:
    """Returns the longest of `variables` that is `name` or begins it, up to a `/`."""
    while name not in variables:
        name = name.rpartition("/")[0]
        if not name:
            return None
    return name


def owners_of(states: Mapping[str, StateClass]) -> dict[str, str]:
    """Returns slot or average -> the model's variable that it belongs to, by their names.

    State that an optimizer keeps once for all variables, such as `beta1_power`, has no owner.
    """
    model = {name for name, state in states.items() if state in WARM_STARTED}
    return {
        name: owner
        for name, state in states.items()
        if state in (StateClass.optimizer_slots, StateClass.moving_averages)
        and (owner := owner_of(name, model)) is not None
    }


def moving_average(name: str, tensors: Collection[str]) -> str | None:
    """Returns which of `tensors` is the average of the weight that the checkpoint calls `name`.

    `NAME/ExponentialMovingAverage` of `tf.train.ExponentialMovingAverage` comes first, then
    `..._average` of a Keras optimizer with `use_ema=True`, if exactly one fits.
    """
    if name + EMA_SUFFIX in tensors:
        return name + EMA_SUFFIX
    # A Keras optimizer joins the variable's whole path, the root model's name first.
    path = re.sub("[/.]", "_", name)
    endings = (f"/{path}_average", f"_{path}_average")
    averages = [tensor for tensor in tensors if f"/{tensor}".endswith(endings)]
    return averages[0] if len(averages) == 1 else None


@dataclass(frozen=True)
class Ownership:
    """The claims of the scaffolds on the variables.

    Attributes:
      claims: variable name -> the scaffold that owns it, whose checkpoint gives its value. A
        variable that no scaffold claims is absent.
      owners: slot or average -> the variable that it belongs to, see `owners_of`.
      problems: patterns that match nothing or are not valid, scaffolds that own nothing, and
        scaffolds that claim one variable and may not.
    """

    claims: Mapping[str, str]
    owners: Mapping[str, str]
    problems: tuple[Problem, ...]


def assign_owners(
    states: Mapping[str, StateClass],
    scaffolds: Mapping[str, ScaffoldConfig],
    collision: Collision,
    *,
    shared_by: Mapping[str, Sequence[str]] | None = None,
    addresses: Mapping[str, str] | None = None,
) -> Ownership:
    """Matches the scaffolds' patterns, in order, over the variables.

    `states` is variable -> class of state; `shared_by`, state that an optimizer keeps once ->
    the variables that it is for; `addresses`, variable -> its name within functional sub-models.
    """
    owners = owners_of(states)
    claims: dict[str, tuple[str, ...]] = {}
    problems: list[Problem] = []
    for scaffold, config in scaffolds.items():
        try:
            include, exclude = config.variables.include, config.variables.exclude
            matched = select(states, include, exclude, addresses=addresses)
        except ValueError as error:
            problems.append(bad_pattern(f"scaffolds.{scaffold}.variables: not a pattern", error))
            continue
        claimed = _claimed(config, matched, states, owners=owners, shared_by=shared_by or {})
        for name in claimed:
            claims[name] = (*claims.get(name, ()), scaffold)
        if matched.unused:
            problems += [
                _unmatched(scaffold, pattern, states, addresses or {}) for pattern in matched.unused
            ]
        else:
            problems += _empty_classes(scaffold, config, [states[name] for name in claimed])
    if collision is Collision.error:
        problems += _collisions(claims)
    winner = -1 if collision is Collision.last else 0
    claims_of_one = {name: claimants[winner] for name, claimants in claims.items()}
    return Ownership(claims_of_one, owners, tuple(problems))


def owners_of_weights(
    names: Iterable[str],
    scaffolds: Mapping[str, ScaffoldConfig],
    collision: Collision,
    addresses: Mapping[str, str],
) -> Mapping[str, str]:
    """Returns weight, or batch-norm statistic -> the scaffold that owns it, as a plan will."""
    states = {name: classify(name, model=True) for name in names}
    weights = {name: state for name, state in states.items() if state in WARM_STARTED}
    return assign_owners(weights, scaffolds, collision, addresses=addresses).claims


def _claimed(
    config: ScaffoldConfig,
    matched: Selected,
    states: Mapping[str, StateClass],
    *,
    owners: Mapping[str, str],
    shared_by: Mapping[str, Sequence[str]],
) -> list[str]:
    """Returns the variables that a scaffold claims, all of the classes in its `state`.

    Slots and moving averages follow their variable unless a pattern names them. State that an
    optimizer keeps once for several variables is claimed with all of them together. The global step
    is claimed by its class alone unless a pattern excludes it.
    """
    wanted, unwanted = {*matched.selected}, {*matched.excluded}
    wanted.update(name for name, owner in owners.items() if owner in matched.selected)
    wanted.update(name for name, of in shared_by.items() if of and matched.selected.issuperset(of))
    unwanted.update(name for name, owner in owners.items() if owner in matched.excluded)
    return [
        name
        for name, state in states.items()
        if (name in wanted or state is StateClass.global_step)
        and name not in unwanted
        and state in config.state
    ]


def _unmatched(
    scaffold: str, pattern: str, states: Mapping[str, StateClass], addresses: Mapping[str, str]
) -> Problem:
    names = [name for name, state in states.items() if state in WARM_STARTED]
    return Problem(
        f"scaffolds.{scaffold}.variables: {pattern!r} matches no variable of the model",
        "patterns match whole names; NAME/ matches all below a module",
        f"fix the pattern, or delete the scaffold: ~scaffolds.{scaffold}",
        nearest_patterns(pattern, [addresses.get(name, name) for name in names or states]),
    )


def _empty_classes(
    scaffold: str, config: ScaffoldConfig, claimed: Sequence[StateClass]
) -> list[Problem]:
    optional = WARM_STARTED if claimed else ()
    empty = [state for state in config.state if state not in (*claimed, *optional)]
    if claimed and not empty:
        return []
    key, classes = f"scaffolds.{scaffold}", ", ".join(state.name for state in empty)
    return [
        Problem(
            f"{key} owns no variable of the class {classes}",
            "its patterns include none, or exclude all again, or the graph keeps no such state",
            f"fix {key}.variables, change its `state`, or delete the scaffold: ~{key}",
            tuple(state.name for state in StateClass if state not in (*empty, *INTERNAL)),
        )
    ]


def _collisions(claims: Mapping[str, tuple[str, ...]]) -> Iterator[Problem]:
    """Yields a problem for each group of scaffolds that claim the same variables."""
    by_claimants: dict[tuple[str, ...], list[str]] = {}
    for name, claimants in claims.items():
        by_claimants.setdefault(claimants, []).append(name)
    for claimants, names in by_claimants.items():
        if len(claimants) > 1:
            who = " and ".join(claimants)
            yield Problem(
                f"scaffolds {who} claim the same variables: {some_of(names, 3)}",
                "a variable's value comes from one place",
                "exclude it from one, or set restoration.collision",
                ("restoration.collision=first", "restoration.collision=last"),
            )
