"""A study of Optuna's: opened from its configuration, reported to, and read at the end."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from runner.config.choices import Goal
from runner.config.instantiation import build_target
from runner.errors import ConfigError, Problem, ranked, require_all
from runner.sweeps.attempt import Attempt, TrialStatus
from runner.sweeps.constraints import constraints
from runner.sweeps.points import Point, given_mapping
from runner.sweeps.search_space import SearchSpace, as_shown, sampler
from runner.sweeps.study_storage import open_storage
from runner.sweeps.summary import Objective

logger = logging.getLogger(__name__)

SWEEPER = "runner.sweeper"
"""User attribute of a trial: the process that sweeps it."""

MESSAGE = "runner.message"
"""User attribute of a trial that was never started: what became of it."""

EXHAUSTED = "runner.exhausted"
"""User attribute of a study: the sampler that has nothing more to try, as it is configured."""

OBJECTIVES = "runner.objectives"
"""User attribute of a study: the names of its objectives."""

# Its own log says on screen what the summary says better.
optuna.logging.set_verbosity(optuna.logging.WARNING)

_STATES = {
    TrialStatus.FINISHED: TrialState.COMPLETE,
    TrialStatus.PRUNED: TrialState.PRUNED,
    TrialStatus.FAILED: TrialState.FAIL,
}
_STATUSES = {
    **{state: status for status, state in _STATES.items()},
    TrialState.RUNNING: TrialStatus.RUNNING,
    TrialState.WAITING: TrialStatus.WAITING,
}

CustomSpace = Callable[[optuna.Trial], Mapping[str, Any] | None]


def open_study(
    storage: Any, name: str, sweeper: Mapping[str, Any], objectives: Sequence[Objective]
) -> optuna.Study:
    """Opens the study, or goes on with one of this name.

    When its sampler has tried all that it has, the study notes that: see `exhausted`.

    Raises:
      ConfigError: the sampler or pruner cannot be built, or the study has other objectives.
    """
    directions = [each.goal.value for each in objectives]
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        sampler=sampler(sweeper),
        pruner=build_target("hydra.sweeper.pruner", sweeper["pruner"]),
        directions=[StudyDirection[each.upper()] for each in directions],
        load_if_exists=True,
    )
    # Samplers stop a study when it is told of its last trial; Optuna knows that only in `optimize`.
    study.stop = lambda: study.set_user_attr(  # type: ignore[method-assign]
        EXHAUSTED, _sampler_named(sweeper)
    )
    _check_objectives(study, objectives)
    if OBJECTIVES not in study.user_attrs:
        study.set_user_attr(OBJECTIVES, [each.name for each in objectives])
    return study


def exhausted(study: optuna.Study, sweeper: Mapping[str, Any]) -> bool:
    """Whether this sampler, with these arguments, has nothing more to try in the study."""
    return study.user_attrs.get(EXHAUSTED) == _sampler_named(sweeper)


def _sampler_named(sweeper: Mapping[str, Any]) -> str:
    return json.dumps(sweeper["sampler"], sort_keys=True, default=str)


def check_study(study: optuna.Study, objectives: Sequence[Objective], space: SearchSpace) -> None:
    """Checks that a study, which may have trials, can be gone on with.

    Raises:
      ConfigError: it has other objectives, or values were drawn that Optuna does not mix with those
        of the space: other choices, another kind of number, or only one of them logarithmic.
    """
    require_all(lambda: _check_objectives(study, objectives), lambda: _check_space(study, space))


def _check_objectives(study: optuna.Study, objectives: Sequence[Objective]) -> None:
    found = [each.name.lower() for each in study.directions]
    wanted = [each.name for each in objectives]
    directions = [each.goal.value for each in objectives]
    names = study.user_attrs.get(OBJECTIVES)
    if found != directions or names not in (None, wanted):
        raise ConfigError(
            Problem(
                f"the study {study.study_name!r} exists, with the objectives {names or ''} {found}",
                f"this sweep has {wanted} {directions}",
                "give hydra.sweeper.study_name another name, or repeat its objectives",
            )
        )


def _check_space(study: optuna.Study, space: SearchSpace) -> None:
    drawn: dict[str, BaseDistribution] = {}
    for trial in study.get_trials(deepcopy=False):
        drawn |= trial.distributions
    problems = [
        Problem(
            f"the study {study.study_name!r} exists, with other values of {name}",
            f"it has drawn from {drawn[name]}, and this sweep draws from {distribution}",
            "give hydra.sweeper.study_name another name, or repeat its values; without a name,"
            " resume=never begins another study",
        )
        for name, distribution in space.distributions().items()
        if name in drawn and not _mix(drawn[name], distribution)
    ]
    if problems:
        raise ConfigError(*problems)


def _mix(one: BaseDistribution, other: BaseDistribution) -> bool:
    """Whether a study may draw from both: ranges may have other ends."""
    if isinstance(one, CategoricalDistribution) or isinstance(other, CategoricalDistribution):
        return one == other
    return type(one) is type(other) and getattr(one, "log", None) == getattr(other, "log", None)


def trial_id(study: optuna.Study, storage: Any, number: int) -> int:
    """Returns what the storage knows a trial of the study by."""
    found = storage.get_study_id_from_name(study.study_name)
    identifier: int = storage.get_trial_id_from_study_id_trial_number(found, number)
    return identifier


def trial_of(study: optuna.Study, storage: Any, number: int) -> optuna.Trial:
    """Returns a trial of the study, by which it is told of."""
    return optuna.Trial(study, trial_id(study, storage, number))


def tell(
    study: optuna.Study,
    number: int,
    attempt: Attempt,
    objectives: Sequence[Objective],
) -> None:
    """Tells the study what became of a trial; one without a value has failed.

    It is not told of one that is to be gone on with, and stays RUNNING there.
    """
    attempt = judged(attempt, objectives)
    if attempt.status not in _STATES:
        return
    values = [each.of(attempt) for each in objectives]
    finished = attempt.status is TrialStatus.FINISHED
    study.tell(
        number,
        [value for value in values if value is not None] if finished else None,
        state=_STATES[attempt.status],
        skip_if_finished=True,
    )


def judged(attempt: Attempt, objectives: Sequence[Objective]) -> Attempt:
    """Returns the attempt, as a failure if it finished and an objective is NaN or missing."""
    if attempt.status is not TrialStatus.FINISHED:
        return attempt
    values = {each.name: each.of(attempt) for each in objectives}
    lacking = [
        f"{name} is {'missing' if value is None else value}"
        for name, value in values.items()
        if value is None or math.isnan(value)
    ]
    if not lacking:
        return attempt
    return replace(attempt, status=TrialStatus.FAILED, message="; ".join(lacking), exit_code=1)


def attempt_of(trial: FrozenTrial, objectives: Sequence[Objective]) -> Attempt:
    """Returns what the study alone tells of a trial, whose files are elsewhere."""
    names = [each.name.removeprefix("validation/") for each in objectives]
    metrics = dict(zip(names, trial.values or (), strict=False))
    status = _STATUSES[trial.state]
    message = trial.user_attrs.get(MESSAGE, "it was tried from another folder")
    return Attempt(
        trial.number,
        1,
        (),
        {key.lstrip("+~"): as_shown(value) for key, value in trial.params.items()},
        metric=objectives[0].name,
        status=status,
        objective=metrics.get(names[0]),
        metrics=metrics,
        curve=tuple(sorted(trial.intermediate_values.items())),
        message=message if status is TrialStatus.FAILED else "",
    )


def check(
    directory: Path, sweeper: Mapping[str, Any], metrics: Sequence[str] | None = None
) -> None:
    """Builds all that a search needs, to find mistakes before anything is made.

    Args:
      directory: not used for a storage that is given.
      sweeper: the sweeper's configuration.
      metrics: those that an evaluation gives, such as `validation/loss`; None where nobody knows.

    Raises:
      ConfigError: with every mistake.
    """
    require_all(
        lambda: sampler(sweeper),
        lambda: build_target("hydra.sweeper.pruner", sweeper["pruner"]),
        lambda: custom_space(sweeper),
        lambda: constraints(sweeper, metrics),
    )
    if sweeper.get("storage") is not None:
        open_storage(directory, sweeper["storage"])


def custom_space(sweeper: Mapping[str, Any]) -> CustomSpace | None:
    """Returns the function that `hydra.sweeper.custom_search_space` names, if it names one.

    Raises:
      ConfigError: there is no such function, or its arguments do not fit; also from the function
        that is returned, when that raises or returns what is no mapping.
    """
    node = sweeper.get("custom_search_space")
    if node is None:
        return None
    key = "hydra.sweeper.custom_search_space"
    found = build_target(key, {**node, "_partial_": True})

    def draw(trial: optuna.Trial) -> Mapping[str, Any] | None:
        try:
            more = found(trial)
        except Exception as error:  # It is the user's, and may raise anything.
            raise ConfigError(
                Problem(
                    f"{key}: {node['_target_']} raises {type(error).__name__}",
                    str(error),
                    "mend the function",
                )
            ) from error
        if more is None or isinstance(more, Mapping):
            return more
        raise ConfigError(
            Problem(
                f"{key}: {node['_target_']} returns {more!r}",
                "it returns further overrides, as a mapping key -> value, or None",
            )
        )

    return draw


def custom_points(space: SearchSpace, custom: CustomSpace, count: int = 5) -> list[Point]:
    """Returns points that a custom space draws at random, in a study that nobody keeps."""
    study = optuna.create_study(sampler=RandomSampler(seed=0))
    points = []
    for _ in range(count):
        trial = study.ask(space.distributions())
        more = custom(trial)
        points.append(space.point(trial.params, more))
    return points


def objectives_of(
    sweeper: Mapping[str, Any], default: Objective, metrics: Sequence[str]
) -> list[Objective]:
    """Returns `hydra.sweeper.objectives`, or the experiment's own.

    Args:
      sweeper: the sweeper's configuration.
      default: the experiment's own.
      metrics: those that an evaluation gives, such as `validation/loss`.

    Raises:
      ConfigError: with every mistake: they are no mapping, a goal is no goal, there is no such
        metric, or a pruner is to compare several objectives.
    """
    example = "{validation/loss: minimize}"
    given = given_mapping("objectives", sweeper.get("objectives"), example)
    problems = [
        Problem(
            f"hydra.sweeper.objectives.{name} is {goal!r}",
            "it must be a goal",
            choices=tuple(Goal.__members__),
        )
        for name, goal in given.items()
        if str(goal) not in Goal.__members__
    ]
    problems += [
        Problem(
            f"hydra.sweeper.objectives names {name!r}",
            "no evaluation gives it",
            choices=ranked(name, metrics),
        )
        for name in given or [default.name]
        if name not in metrics
    ]
    pruner = str(sweeper["pruner"].get("_target_", ""))
    if len(given) > 1 and not pruner.endswith(".NopPruner"):
        problems.append(
            Problem(
                f"hydra.sweeper.pruner is {pruner}",
                f"there are {len(given)} objectives, and trials are pruned by one",
                "hydra/sweeper/pruner=none",
            )
        )
    if problems:
        raise ConfigError(*problems)
    return [Objective(name, Goal[goal]) for name, goal in given.items()] or [default]
