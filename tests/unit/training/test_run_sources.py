"""Where the checkpoints of scaffolds come from: paths, and experiments that are trained first."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from filelock import FileLock

from runner.checkpoints.reader import CheckpointSpec
from runner.config.choices import Mode
from runner.config.composition import compose_experiment
from runner.config.fingerprint import Identity, fingerprint
from runner.config.schema import RunConfig, ScaffoldConfig, VariablesConfig
from runner.config.validation import validate
from runner.errors import Problem, RunInUseError, UserCodeError
from runner.runs.run_directory import RunDirectory
from runner.system.status import Status
from runner.tracking import RunStore, TrackedRun, open_store
from runner.training.run_sources import Sources
from tests.support.composing import composing
from tests.support.configs import tiny
from tests.support.runs import Runs


@pytest.fixture(scope="module", autouse=True)
def conf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The configs, in which the tiny experiment has a model of two layers."""
    with composing(tmp_path_factory.mktemp("conf")) as folder:
        file = folder / "experiment" / "tiny.yaml"
        file.write_text(file.read_text().replace("experiment.Net", "odd.Plain"))
        yield folder


def _scaffold(checkpoint: str | None) -> ScaffoldConfig:
    return ScaffoldConfig(VariablesConfig(["body/*"]), checkpoint)


def _config(folder: Path, **scaffolds: ScaffoldConfig) -> RunConfig:
    return tiny(name="warm", run_dir=str(folder / "runs" / "warm"), scaffolds=scaffolds)


def _sources(config: RunConfig) -> Sources:
    return Sources(config, open_store(config.tracking, {}))


def _train(config: RunConfig) -> float | None:
    return Runs(Path(config.run_dir)).start(config)


def _nothing(config: RunConfig) -> None:
    raise AssertionError("it is trained")


def _spec(sources: Sources, scaffold: str) -> CheckpointSpec:
    located = sources.expected()
    assert located.problems == {}
    spec = located.specs[scaffold]
    assert spec is not None
    return spec


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, conf: Path) -> RunDirectory:
    """A run of `+experiment=tiny`, to be copied."""
    folder = tmp_path_factory.mktemp("trained")
    config = validate(compose_experiment("tiny", ["tracking.uri=null"]))
    config.run_dir = str(folder / "tiny")
    _train(config)
    return RunDirectory(folder / "tiny" / "001")


def test_paths_are_read_and_null_stays_null(tmp_path: Path, trained: RunDirectory) -> None:
    checkpoints = trained.checkpoints
    sources = _sources(_config(tmp_path, body=_scaffold(str(checkpoints)), head=_scaffold(None)))
    spec = _spec(sources, "body")
    assert (spec.path, spec.step) == (str(checkpoints / "model.ckpt-20"), 20)
    assert "body/kernel" in spec.tensors
    assert sources.expected().specs["head"] is None


def test_every_absent_checkpoint_is_reported_with_its_scaffold(tmp_path: Path) -> None:
    nowhere = _scaffold(str(tmp_path / "nowhere"))
    located = _sources(_config(tmp_path, body=nowhere, head=nowhere)).expected()
    assert located.specs == {"body": None, "head": None}
    assert {name: [each.state for each in found] for name, found in located.problems.items()} == {
        name: [f"scaffolds.{name}.checkpoint: there is no checkpoint at {tmp_path / 'nowhere'}"]
        for name in ("body", "head")
    }


def test_an_experiment_that_is_not_trained_gives_what_it_will_save(tmp_path: Path) -> None:
    spec = _spec(_sources(_config(tmp_path, body=_scaffold("experiment:tiny"))), "body")
    assert (spec.path, spec.step) == ("experiment:tiny (not trained yet)", None)
    assert spec.tensors["body/kernel"].shape == (8, 4)
    assert not (tmp_path / "runs").exists()


def test_a_missing_experiment_is_trained_once(tmp_path: Path) -> None:
    same = _scaffold("experiment:tiny")
    same.overrides = ["train.objective=validation/accuracy", "train.goal=minimize"]
    sources = _sources(_config(tmp_path, body=same, head=same))
    tried: list[RunConfig] = []

    def train(config: RunConfig) -> None:
        tried.append(config)
        if len(tried) == 1:
            raise ValueError("the training failed")
        _train(config)

    with pytest.raises(ValueError, match="the training failed"):
        sources.train_missing(train)
    sources.train_missing(train)
    sources.train_missing(train)
    assert tried[0] == tried[1], "it is the same run that is continued"
    assert len(tried) == 2
    assert (tried[0].name, tried[0].run_dir) == ("tiny", str(tmp_path / "runs" / "tiny"))

    run = tmp_path / "runs" / "tiny" / "001"
    best = json.loads((run / "best" / "best.json").read_text())["step"]
    for which, place in {
        None: f"best/model.ckpt-{best}",
        "best": f"best/model.ckpt-{best}",
        "latest": "checkpoints/model.ckpt-20",
        "10": "checkpoints/model.ckpt-10",
    }.items():
        same.which = which
        assert _spec(sources, "body").path == str(run / place)
    same.which, same.average = None, "last 2"
    assert _spec(sources, "body").path.startswith("average of 2: ")
    assert [each.spec.step for each in sources.origins()["body"]] == [10, 20]
    assert {each.run["experiment"] for each in sources.origins()["body"] if each.run} == {"tiny"}


def test_the_newest_finished_run_of_the_same_configuration_counts(
    tmp_path: Path, trained: RunDirectory
) -> None:
    runs = tmp_path / "runs" / "tiny"
    for number in (1, 2, 3):
        shutil.copytree(trained.path, runs / f"00{number}")
    sources = _sources(_config(tmp_path, body=_scaffold("experiment:tiny")))
    sources.train_missing(_nothing)
    assert Path(_spec(sources, "body").path).parents[1] == runs / "003"
    RunDirectory(runs / "003").update(status="FAILED")
    assert Path(_spec(sources, "body").path).parents[1] == runs / "002"
    RunDirectory(runs / "002").update(fingerprint="another")
    assert Path(_spec(sources, "body").path).parents[1] == runs / "001"


class _Remembering(RunStore):
    """A store that remembers one finished run, in a folder that it names."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def finished(self, experiment: str, tags: Mapping[str, str]) -> list[TrackedRun]:
        return [TrackedRun("1", experiment, Status.FINISHED, self.folder, tags)]


def test_a_folder_that_by_now_is_another_runs_is_not_taken(
    tmp_path: Path, trained: RunDirectory
) -> None:
    config = _config(tmp_path, body=_scaffold("experiment:tiny"))
    folder = tmp_path / "elsewhere" / "001"
    sources = Sources(config, _Remembering(folder))
    tried: list[RunConfig] = []

    def missing() -> bool:
        """Whether it would be trained."""
        tried.clear()
        sources.train_missing(tried.append)
        return bool(tried)

    assert missing(), "the folder is gone"
    shutil.copytree(trained.path, folder)
    assert not missing()
    RunDirectory(folder).update(fingerprint="another")
    assert missing(), "the folder is another run's"


def test_overrides_make_it_another_run_and_the_mode_does_not(
    tmp_path: Path, trained: RunDirectory
) -> None:
    plain, changed = _scaffold("experiment:tiny"), _scaffold("experiment:tiny")
    changed.overrides = ["train.steps=5"]
    configs = [_config(tmp_path, body=each) for each in (plain, changed)]
    for config in configs:
        config.mode = Mode.plan
    first, second = (_sources(config) for config in configs)
    assert fingerprint(first.identity.settings()) != fingerprint(second.identity.settings())
    shutil.copytree(trained.path, tmp_path / "runs" / "tiny" / "001")
    first.train_missing(_nothing)
    tried: list[RunConfig] = []
    second.train_missing(tried.append)
    assert [(each.mode, each.train.steps) for each in tried] == [(Mode.train, 5)]


def _write_experiment(conf: Path, name: str, source: str) -> None:
    (conf / "experiment" / f"{name}.yaml").write_text(
        f"# @package _global_\ndefaults: [tiny]\nname: {name}\n"
        f"scaffolds: {{body: {{variables: {{include: ['body/*']}}, checkpoint: {source}}}}}\n"
    )


def test_what_would_stop_the_training_of_a_source_is_a_problem_before(
    conf: Path, tmp_path: Path
) -> None:
    _write_experiment(conf, "middle", str(tmp_path / "nowhere"))
    sources = _sources(_config(tmp_path, body=_scaffold("experiment:middle")))
    (problem,) = sources.expected().problems["body"]
    assert problem.state == (
        "scaffolds.body.checkpoint: experiment:middle: scaffolds.body.checkpoint: "
        f"there is no checkpoint at {tmp_path / 'nowhere'}"
    )


def test_an_error_in_the_code_of_a_source_names_its_experiment(conf: Path, tmp_path: Path) -> None:
    (conf / "experiment" / "broken.yaml").write_text(
        "# @package _global_\ndefaults: [tiny]\nname: broken\n"
        "model: {_target_: tests.samples.faulty.Refusing}\n"
    )
    sources = _sources(_config(tmp_path, body=_scaffold("experiment:broken")))
    with pytest.raises(UserCodeError) as caught:
        sources.expected()
    assert str(caught.value) == "experiment:broken: model raised RuntimeError: no such device"
    assert "in __init__" in caught.value.details


def test_an_experiment_may_start_from_itself_in_another_configuration(tmp_path: Path) -> None:
    config = tiny(run_dir=str(tmp_path / "tiny"), scaffolds={"b": _scaffold("experiment:tiny")})
    assert "@" in str(_sources(config).identity.settings())


def test_a_source_that_another_process_trains_is_waited_for(
    tmp_path: Path, trained: RunDirectory
) -> None:
    config = _config(tmp_path, body=_scaffold("experiment:tiny"))
    identity = Identity(config)
    source = identity.experiment("body")
    folder = Path(source.run_dir)
    folder.mkdir(parents=True)
    other = FileLock(folder / f".source-{identity.of(source)}.lock")
    other.acquire()
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        shutil.copytree(trained.path, folder / "001")
        other.release()

    _sources(config).train_missing(_nothing, say)
    assert lines == ["tiny: waiting for another process that trains it"]


def test_a_source_that_runs_by_itself_is_waited_for(tmp_path: Path) -> None:
    config = _config(tmp_path, body=_scaffold("experiment:tiny"))
    run = RunDirectory(tmp_path / "runs" / "tiny" / "001")
    lines: list[str] = []
    tried: list[str] = []

    def train(source: RunConfig) -> None:
        tried.append(source.name)
        if len(tried) == 1:
            raise RunInUseError(Problem("in use"), run.path)

    run.path.mkdir(parents=True)
    _sources(config).train_missing(train, lines.append)
    assert tried == ["tiny", "tiny"]
    assert lines == [f"tiny: {run.path} is in use; waiting for it"]
