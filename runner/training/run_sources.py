"""Finds each scaffold's checkpoint, and trains the experiment it comes from if necessary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from runner.checkpoints.locate import BEST_OF_RUN, latest_checkpoint
from runner.checkpoints.open import open_pinned
from runner.checkpoints.reader import CheckpointReader, CheckpointSpec
from runner.config.choices import EXPERIMENT
from runner.config.fingerprint import Identity
from runner.config.schema import RunConfig, ScaffoldConfig
from runner.errors import (
    CheckpointError,
    ConfigError,
    UserCodeError,
)
from runner.graph.build import build_graph
from runner.graph.built_graph import BuiltGraph
from runner.planning.plan import LocatedSources, RestorationPlan
from runner.planning.sources import locate_sources, open_source
from runner.planning.weights_layout import plan_located
from runner.runs.provenance import Origin
from runner.runs.run_directory import RunDirectory, runs, when_free
from runner.system.locks import is_held
from runner.system.status import Status
from runner.tracking import RunStore

FINGERPRINT_TAG = "runner.fingerprint"


class Sources:
    """The checkpoints of a run's scaffolds.

    Args:
      config: the run's configuration.
      store: where its predecessors are recorded.

    Attributes:
      identity: the run's settings, and the experiments that it starts from.
    """

    def __init__(self, config: RunConfig, store: RunStore) -> None:
        self._config, self._store = config, store
        self.identity = Identity(config)
        self._origins: dict[str, tuple[Origin, ...]] = {}

    def expected(self) -> LocatedSources:
        """Locates the checkpoints of all scaffolds and pins them for `open`.

        For an experiment that is not trained yet, the checkpoint is the one its graph will save.

        Raises:
          ConfigError: when the experiment of a source does not compose or build.
        """
        return locate_sources(self._config.scaffolds, self._expected)

    def train_missing(
        self, train: Callable[[RunConfig], object], say: Callable[[str], None] = lambda line: None
    ) -> bool:
        """Trains every experiment that a scaffold comes from and that has no finished run.

        When another process is training it, this one waits.

        Args:
          train: trains an experiment.
          say: reports what is waited for.

        Returns:
          Whether `expected` now locates more than when it was last called.
        """
        more = False
        for name, scaffold in self._config.scaffolds.items():
            if _is_experiment(scaffold) and name not in self._origins:
                more = True
                self._train_once(self.identity.experiment(name), train, say)
        return more

    def _train_once(
        self,
        experiment: RunConfig,
        train: Callable[[RunConfig], object],
        say: Callable[[str], None],
    ) -> None:
        folder = Path(experiment.run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        # Two trials that need the same source come here at once.
        lock = folder / f".source-{self.identity.of(experiment)}.lock"
        if is_held(lock):
            say(f"{experiment.name}: waiting for another process that trains it")
        with FileLock(lock):
            when_free(
                lambda: self._train_unless_finished(experiment, train),
                lambda line: say(f"{experiment.name}: {line}"),
            )

    def _train_unless_finished(
        self, experiment: RunConfig, train: Callable[[RunConfig], object]
    ) -> None:
        # Another process may have trained it meanwhile.
        if self._finished(experiment) is None:
            with _naming(experiment):
                train(experiment)

    def open(self, scaffold: str) -> CheckpointReader:
        """Opens the checkpoint that `expected` last located for a scaffold.

        Raises:
          CheckpointError: when its content has changed since.
        """
        return open_pinned(
            [(origin.spec.path, origin.spec.digest) for origin in self._origins[scaffold]]
        )

    def origins(self) -> Mapping[str, tuple[Origin, ...]]:
        """Returns scaffold -> the checkpoints that `expected` resolved it to, several averaged."""
        return dict(self._origins)

    def _expected(self, name: str, scaffold: ScaffoldConfig) -> CheckpointSpec | None:
        self._origins.pop(name, None)
        if scaffold.checkpoint is None:
            return None
        place, which = scaffold.checkpoint, scaffold.which
        if _is_experiment(scaffold):
            experiment = self.identity.experiment(name)
            run = self._finished(experiment)
            if run is None:
                return self._to_be_trained(experiment)
            place = str(run.path)
            if which is None and scaffold.average is None and run.best_record.is_file():
                which = BEST_OF_RUN
        source = open_source(scaffold, place, which, self._store)
        if source is None:
            return None
        self._origins[name] = source.origins
        return source.spec

    def _to_be_trained(self, experiment: RunConfig) -> CheckpointSpec:
        with _naming(experiment):
            built = build_graph(experiment, "validation", train=True)
        # What would stop its training is a problem now, not once that begins.
        inner = Sources(experiment, self._store)
        problems = plan_run(experiment, built, inner).problems
        if problems:
            name = f"{EXPERIMENT}{experiment.name}"
            raise CheckpointError(*(problem.within(name) for problem in problems))
        return CheckpointSpec(
            f"{EXPERIMENT}{experiment.name} (not trained yet)",
            None,
            {spec.name: spec.tensor for spec in built.specs},
        )

    def _finished(self, experiment: RunConfig) -> RunDirectory | None:
        """Returns the newest finished run of the experiment that has a checkpoint, if any."""
        wanted = self.identity.of(experiment)
        # The run directories answer at once; the store is asked for runs that are elsewhere.
        for directory, _ in runs(Path(experiment.run_dir).absolute()):
            if _has_finished(directory, wanted):
                return directory
        for tracked in self._store.finished(experiment.name, {FINGERPRINT_TAG: wanted}):
            if tracked.run_dir is not None:
                directory = RunDirectory(tracked.run_dir)
                if _has_finished(directory, wanted):
                    return directory
        return None


@contextmanager
def _naming(experiment: RunConfig) -> Iterator[None]:
    """Names the experiment in the problems of its configuration and the errors of its code.

    Otherwise they would seem to be problems of the run that needs it, whose keys are the same.
    """
    name = f"{EXPERIMENT}{experiment.name}"
    with ConfigError.within(name), UserCodeError.within(name):
        yield


def _has_finished(directory: RunDirectory, wanted: str) -> bool:
    """Whether a directory holds a finished run of a fingerprint, and a checkpoint of it."""
    # The folder of a run that the store remembers may be gone, or hold another run by now.
    record = directory.read()
    if record is None or (record.fingerprint, record.status) != (wanted, Status.FINISHED):
        return False
    return any(latest_checkpoint(str(place)) for place in (directory.best, directory.checkpoints))


def _is_experiment(scaffold: ScaffoldConfig) -> bool:
    return (scaffold.checkpoint or "").startswith(EXPERIMENT)


def plan_run(config: RunConfig, built: BuiltGraph, sources: Sources) -> RestorationPlan:
    """Returns the plan of a run's fresh start, with all problems.

    Raises:
      ConfigError: when the experiment of a source does not compose or build.
    """
    return plan_located(
        built.specs,
        config.scaffolds,
        sources.expected(),
        rules=config.restoration,
        layout=built.layout,
        slots=built.slots,
    )
