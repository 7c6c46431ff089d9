"""Launches the trials of a sweep by one of Hydra's launchers, and retries those that fail.

Also here is what a sweep has to know of the launchers themselves, by their classes.
"""

from __future__ import annotations

import glob
import importlib
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher

from runner.errors import ConfigError, Problem, SweepError
from runner.sweeps.sweep_directory import DIED, FAILURES, Attempt, AttemptFile, SweepDirectory
from runner.system.locks import this_process
from runner.system.signals import Interruption
from runner.system.status import Status

logger = logging.getLogger(__name__)

# Takes the overrides of each job and the number of the first.
Launch = Callable[[Sequence[Sequence[str]], int], object]
Withdraw = Callable[[Collection[int]], object]

_LOOK_SECONDS = 0.1
# Of what is left of the grace period, for what the sweep itself has to record after its trials.
_RESERVED = 0.2


@dataclass(frozen=True)
class _Turn:
    """A trial's next attempt; `before` is its last one that was started, None for the first."""

    attempt: Attempt
    alone: bool = False
    before: Attempt | None = None


class Execution:
    """Runs trials by a launcher.

    A launcher may itself fail when one of its processes dies, and end other trials with it. Which
    trial was the cause shows when each is launched by itself, from its last checkpoint.

    After a signal, trials in other processes are cancelled: each saves its last step.

    `collective` is whether the death of one process may end those of other trials; `withdraw`
    removes attempts, by number, from the launcher's queue.
    """

    def __init__(
        self,
        directory: SweepDirectory,
        launch: Launch,
        retries: int,
        interruption: Interruption | None = None,
        *,
        collective: bool = True,
        withdraw: Withdraw = lambda numbers: None,
    ) -> None:
        self._directory, self._launch, self._retries = directory, launch, retries
        self._interruption = interruption or Interruption()
        self._collective, self._withdraw = collective, withdraw

    def run(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Returns the last attempt of each trial, in the order of `attempts`, the first of each.

        Raises:
          SweepError: when the launcher starts no trial at all.
          InterruptedRunError: after a signal.
        """
        ended: dict[int, Attempt] = {}
        turns = [_Turn(self._numbered(attempt, 1)) for attempt in attempts]
        while turns:
            batch = self._batch(turns)
            chosen = {turn.attempt.trial for turn in batch}
            rest = [turn for turn in turns if turn.attempt.trial not in chosen]
            turns = [*self._run_batch(batch, ended), *rest]
        return [ended[attempt.trial] for attempt in attempts]

    def _batch(self, turns: Sequence[_Turn]) -> Sequence[_Turn]:
        """Returns what is launched together: trials to be launched by themselves come last.

        Where a failure stops the sweep, what may fail again comes before any other trial.
        """
        alone = [turn for turn in turns if turn.alone]
        others = [turn for turn in turns if not turn.alone]
        if self._directory.stops_on_failure():
            return alone[:1] or [turn for turn in others if turn.before is not None] or others
        return others or alone[:1]

    def _run_batch(self, turns: Sequence[_Turn], ended: dict[int, Attempt]) -> list[_Turn]:
        """Launches once, adds to `ended`, and returns what is to be launched again."""
        self._directory.release_held()
        numbers = self._directory.add([turn.attempt for turn in turns])
        files = [self._directory.attempt(number) for number in numbers]
        crash = self._launched([each.attempt.overrides for each in turns], numbers[0], files)
        # Some libraries append a traceback to the first line of their errors' messages.
        cause = f"{type(crash).__name__}: {crash}".partition("\n")[0] if crash is not None else ""
        attempts = [file.settle(cause) for file in files]
        started = any(each.status is not Status.SKIPPED for each in attempts)
        if crash is not None:
            if not started and not self._directory.stopped():
                remedy = "check hydra/launcher and its settings"
                raise SweepError(Problem("the launcher started no trial", cause, remedy)) from crash
            logger.warning("The launcher failed, %s", cause)
        again = []
        for turn, attempt in zip(turns, attempts, strict=True):
            following = self._following(turn, attempt, crashed=crash is not None, of=len(turns))
            if following is not None:
                again.append(following)
                continue
            skipped = attempt.status is Status.SKIPPED
            ended[attempt.trial] = turn.before or attempt if skipped else attempt
            if attempt.status in FAILURES:
                self._directory.failed()
        return again

    def _launched(
        self, overrides: Sequence[Sequence[str]], first: int, files: Sequence[AttemptFile]
    ) -> Exception | None:
        """Launches, and returns what the launcher itself raised.

        Raises:
          InterruptedRunError: after a signal; all attempts have ended, except those that the grace
            period was too short for.
        """
        crash: Exception | None = None
        try:
            try:
                with self._interruption.notifying(lambda: self._cancel(files)):
                    self._launch(overrides, first)
            except Exception as error:  # noqa: BLE001 - launchers raise their libraries' errors
                crash = error
            self._interruption.check()
        except BaseException:
            for file in files:
                if not file.runs_elsewhere():
                    file.settle()
            raise
        return crash

    def _cancel(self, files: Sequence[AttemptFile]) -> None:
        """Ends attempts in other processes, and waits for them as long as the signal allows."""
        for file in files:
            file.cancel()
        seconds = self._interruption.remaining() or 0.0
        waiting = [file for file in files if file.read().status is Status.WAITING]
        self._withdraw({int(file.path.stem) for file in waiting})
        if any(file.runs_elsewhere() for file in files):
            # Not print: the main thread may hold the stream's lock.
            os.write(2, b"runner: waiting for trials to save their last step\n")
        while (self._interruption.remaining() or 0.0) > _RESERVED * seconds:
            if not any(file.runs_elsewhere() for file in files):
                return
            time.sleep(_LOOK_SECONDS)

    def _following(self, turn: _Turn, attempt: Attempt, *, crashed: bool, of: int) -> _Turn | None:
        """Returns the trial's next turn, or None when it has ended."""
        if self._directory.stopped():
            return None
        if attempt.status is Status.SKIPPED and (crashed or self._directory.held()):
            return turn
        ended_with_others = self._collective and crashed and of > 1
        if ended_with_others and attempt.message.startswith(DIED):
            return replace(turn, alone=True, before=attempt)
        if attempt.status in FAILURES and turn.attempt.number <= self._retries:
            retry = self._numbered(turn.attempt, turn.attempt.number + 1)
            return replace(turn, attempt=retry, before=attempt)
        return None

    def _numbered(self, attempt: Attempt, number: int) -> Attempt:
        last = number > self._retries
        return replace(attempt, number=number, last=last, sweeper=this_process())


SERIAL = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
JOBLIB = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"
SUBMITIT = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher"
SLURM = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"
RAY = "hydra_plugins.runner_launchers.ray.RayLauncher"

# Launcher -> the extra that installs it.
_EXTRAS = {JOBLIB: "joblib", SUBMITIT: "slurm", SLURM: "slurm"}

_SUBMITTED = "_submitted.pkl"
_EXECUTOR = "SUBMITIT_EXECUTOR"
# Position of Hydra's number of the job among the arguments that SlurmLauncher submits; private.
JOB_NUMBER = 2


class LauncherKind:
    """Which launcher `hydra.launcher` configures, and how it treats trials."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._target = str(config.get("_target_", ""))

    @property
    def is_local(self) -> bool:
        """Whether trials certainly see the files that this process sees."""
        if self._target == RAY:
            return (self._config.get("init") or {}).get("address") is None
        return self._target in (SERIAL, JOBLIB, SUBMITIT)

    @property
    def is_collective(self) -> bool:
        """Whether the death of one trial's process may end those of other trials."""
        return self._target not in (SUBMITIT, SLURM, RAY)

    def require_installed(self) -> None:
        """Raises ConfigError if the launcher's plugin is not installed."""
        known = Plugins.instance().class_name_to_class
        if self._target in known:
            return
        extra = _EXTRAS.get(self._target)
        raise ConfigError(
            Problem(
                f"hydra.launcher._target_ is {self._target!r}",
                "no installed plugin of Hydra holds it",
                f'pip install "runner[{extra}]"' if extra else "install its package",
                tuple(name for name, each in known.items() if issubclass(each, Launcher)),
            )
        )

    def withdraw(self, numbers: Collection[int]) -> None:
        """Cancels the jobs in Slurm's queue of those attempts, by number, that have not started.

        Hydra's launcher keeps its jobs to itself; but the arguments of each are in its folder. If
        one cannot be cancelled, a warning is logged: it does nothing when its turn comes.
        """
        if self._target != SLURM:
            return
        import submitit  # An extra, installed where there are such jobs.

        folder = str(self._config.submitit_folder)
        place = re.sub("%[jAat]", "*", glob.escape(folder))
        for file in sorted(glob.glob(f"{place}/*{_SUBMITTED}")):
            name = Path(file).name.removesuffix(_SUBMITTED)
            try:
                job: submitit.SlurmJob[object] = submitit.SlurmJob(folder, name)
                if job.submission().args[JOB_NUMBER] in numbers:
                    job.cancel(check=False)
            except Exception as error:  # noqa: BLE001 - submitit's, and what unpickling raises
                logger.warning("The job %s cannot be taken out of the queue: %r", name, error)


def requeue_signals(environment: Mapping[str, str]) -> tuple[signal.Signals, ...]:
    """Returns the signal at which submitit has this job started again; none outside its jobs.

    Slurm sends it some time before the job's time limit.
    """
    if _EXECUTOR not in environment:
        return ()
    number = signal.Signals[f"SIG{environment.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}"]
    # A child of such a job inherits the environment, but not the handler.
    return (number,) if callable(signal.getsignal(number)) else ()


def may_be_requeued(environment: Mapping[str, str]) -> bool:
    """Whether Slurm itself may start this job again, as after a preemption."""
    return environment.get(_EXECUTOR) == "slurm"


def require_extra(module: str, setting: str) -> None:
    """Checks that a module can be imported, which the extra of its name installs.

    Raises:
      ConfigError: it cannot.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            Problem(
                f"{setting} needs {module.capitalize()}",
                str(error),
                f'pip install "runner[{module}]", or in a checkout pip install -e ".[{module}]"',
            )
        ) from error
