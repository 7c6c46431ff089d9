"""The command line of sweeps: what is refused before anything is made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hydra import compose
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.types import HydraContext

from hydra_plugins.runner_sweepers.grid import GridSweeper
from runner.config.choices import Mode
from runner.config.schema import ScaffoldConfig
from runner.errors import ConfigError, Problem
from runner.sweeps.points import ComposedPoint, Point
from tests.tiny.command_line import CONF, Command, in_process
from tests.tiny.composing import composing
from tests.tiny.configs import tiny


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Sweeps over the tiny experiment in this process, in an empty directory."""
    return in_process(tmp_path, monkeypatch, capfd, *CONF, "-m", "+experiment=tiny")


OPTUNA = "hydra/sweeper=optuna"
RATE = "optimizer.learning_rate=interval(0.1,1)"
BODY = "scaffolds.body.variables.include=['body/*']"
MISTAKES: dict[tuple[str, ...], tuple[str, str]] = {
    ("seed=1,2", "train.steps=3,0"): ("train.steps is 0", "in 2 of 4 trials: seed=1 train.steps"),
    ("trian.steps=1,2",): ("trian.steps is not a key", "choices: train.steps"),
    ("mode=plan,train",): ("mode is swept over", "do the same thing"),
    ("sweep.on_error=continue,stop", "sweep.retries=0,1"): (
        "sweep.on_error is swept over",
        "sweep.retries is swept over",
    ),
    (OPTUNA, "sweep.retries=0,1"): ("sweep.retries is swept over", "it holds for the sweep"),
    ("sweep.retries=-1", "seed=1,2"): ("sweep.retries is -1", "at least 0"),
    ("sweep.on_error=ignore", "seed=1,2"): ("sweep.on_error has a value", "choices: continue"),
    (RATE,): (f"{RATE} is an interval", "hydra/sweeper=optuna"),
    ("hydra/launcher=proceses", "seed=1,2"): ("hydra/launcher 'proceses' is not", "processes"),
    (OPTUNA, "seed=1"): ("there is nothing to search", "interval(1e-4, 1e-1)"),
    (OPTUNA, RATE, "hydra.sweeper.n_trials=0"): ("hydra.sweeper.n_trials is 0", "above 0"),
    (OPTUNA, "optimizer.learning_rate=tag(lo, interval(0,1))"): (
        "optimizer.learning_rate=tag(lo, interval(0,1)) cannot be searched",
        "there is no tag 'lo'",
    ),
    (OPTUNA, RATE, "hydra.sweeper.sampler._target_=optuna.samplers.Nosuch"): (
        "hydra.sweeper.sampler._target_ is 'optuna.samplers.Nosuch'",
        "name an importable class",
    ),
    (OPTUNA, RATE, "+hydra.sweeper.pruner.patience=3"): (
        "hydra.sweeper.pruner.patience is not an argument of optuna.pruners.NopPruner",
        "misspelt",
    ),
    (OPTUNA, RATE, "hydra.sweeper.custom_search_space={_target_: tests.tiny.spaces.nosuch}"): (
        "hydra.sweeper.custom_search_space._target_ is 'tests.tiny.spaces.nosuch'",
        "name an importable",
    ),
    (OPTUNA, "hydra.sweeper.custom_search_space={_target_: tests.tiny.spaces.misspelt}"): (
        "optimizer.learning_rat is not set",
        "",
    ),
    ("+model.unts=3,4", "tracking=none"): (
        "model.unts is not an argument of tests.tiny.experiment.Net",
        "choices: units",
    ),
    (BODY, "scaffolds.body.checkpoint=null,/nosuch/model", "tracking=none"): (
        "scaffolds.body.checkpoint: there is no checkpoint at /nosuch/model",
        "in 1 of 2 trials: scaffolds.body.checkpoint=/nosuch/model",
    ),
    ("hydra.sweeper.params=3",): ("hydra.sweeper.params is 3", "it must be a mapping"),
    ("seed=1,2", "hydra.job.chdir=true", "tracking=none"): (
        "hydra.job.chdir is true",
        "would lead elsewhere in a trial than in its sweep",
    ),
    ("seed=1,2", "sweep.bands=[sed]"): ("sweep.bands names 'sed'", "choices: seed"),
    (OPTUNA, RATE, "hydra.sweeper.constraints={validation/los: {max: 0.5}}"): (
        "hydra.sweeper.constraints names 'validation/los'",
        "choices: validation/loss, validation/accuracy",
    ),
    (OPTUNA, RATE, "hydra.sweeper.storage='nosuch://host/db'"): (
        "hydra.sweeper.storage cannot be opened",
        "postgresql://host/database",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=" ".join)
def test_a_mistake_ends_the_sweep_before_anything_is_made(
    command: Command, mistake: tuple[str, ...], tmp_path: Path
) -> None:
    state, below = MISTAKES[mistake]
    outcome = command(*mistake)
    assert outcome.code == 2
    assert state in outcome.err
    assert below in outcome.err
    assert "Traceback" not in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_without_optuna_the_message_says_how_to_get_it(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    outcome = command(OPTUNA, RATE)
    assert outcome.code == 2
    assert "runner: hydra/sweeper=optuna needs Optuna\n" in outcome.err
    assert 'pip install "runner[optuna]"' in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_a_late_mistake_is_reported_after_what_is_done(command: Command) -> None:
    constraint = "hydra.sweeper.constraints={mine: {_target_: tests.tiny.spaces.undivided}}"
    outcome = command(OPTUNA, RATE, constraint, "tracking=none", "sweep.figures=false")
    assert outcome.code == 2
    assert "\ntrial  " in outcome.out
    assert " FINISHED  tiny/001\n" in outcome.out
    assert "tests.tiny.spaces.undivided gives no number" in outcome.err
    assert "Traceback" not in outcome.err


def test_learning_curves_and_steps_to_a_threshold_need_no_optuna(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "runner.sweeps.figures", raising=False)
    params = "hydra.sweeper.params={optimizer.learning_rate: '1e-3,1', seed: [1, 2]}"
    outcome = command(params, "sweep.threshold=0.7", "tracking=none", "resume=never")
    assert outcome.code == 0, outcome.err
    assert "no further figures: " in outcome.out
    assert [file.name for file in tmp_path.glob("runs/sweeps/001/figures/*")] == [
        "learning_curves.png"
    ]
    assert len(list(tmp_path.glob("runs/tiny/*/run.json"))) == 4
    _, table = outcome.out.split("\nsteps to validation/loss 0.7\n")
    rows = [line.split() for line in table.splitlines()[:3]]
    assert rows[0][:5] == ["learning_rate", "reached", "fewest", "median", "most"]
    assert {row[0] for row in rows[1:]} == {"0.001", "1"}
    assert all(row[2:4] == ["of", "2"] for row in rows[1:])


def test_secrets_of_all_trials_are_masked(command: Command, tmp_path: Path) -> None:
    outcome = command(
        "seed=10001,10002",
        "tracking.mask.names=[seed,data.seed]",
        "tracking=none",
        "sweep.figures=false",
    )
    assert outcome.code == 0, outcome.err
    assert {line.split()[1] for line in outcome.out.splitlines()[-2:]} == {"***1", "***2"}
    texts = [
        file.read_text()
        for pattern in ("runs/sweeps/001/*.json", "runs/tiny/*/*.json", "runs/tiny/*/*.yaml")
        for file in tmp_path.glob(pattern)
    ]
    assert len(texts) >= 7
    assert not any("10001" in each or "10002" in each for each in texts)


def test_the_table_of_evaluations_names_the_split_that_was_evaluated(command: Command) -> None:
    given = ("seed=1,2", "train.steps=2", "train.evaluate_every=2", "tracking=none")
    assert "  validation/loss  " in command(*given, "sweep.figures=false").out
    outcome = command(*given, "mode=evaluate")
    assert outcome.code == 0, outcome.err
    (head,) = [line for line in outcome.out.splitlines() if line.startswith("trial  ")]
    assert head.split() == ["trial", "seed", "test/loss", "status", "run"]


def _grid(overrides: list[str]) -> GridSweeper:
    sweep = GridSweeper()
    sweep.setup(
        hydra_context=HydraContext(GlobalHydra.instance().config_loader(), Callbacks()),
        task_function=lambda config: None,
        config=compose("config", overrides, return_hydra_config=True),
    )
    return sweep


NO_SOURCE = "scaffolds.body.checkpoint: there is no checkpoint at /nosuch/model"


@pytest.mark.parametrize(
    ("overrides", "mode", "reported"),
    [
        ([], Mode.train, ["no such target", NO_SOURCE]),
        (["hydra/launcher=processes"], Mode.train, ["no such target", NO_SOURCE]),
        (["hydra/launcher=slurm"], Mode.train, ["no such target"]),
        (["hydra.job.chdir=true"], Mode.plan, ["hydra.job.chdir is true", "no such target"]),
        ([], Mode.plan, ["no such target"]),
    ],
)
def test_sources_are_looked_for_with_targets_where_trials_train_here(
    overrides: list[str],
    mode: Mode,
    reported: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(composed: object) -> None:
        raise ConfigError(Problem("no such target"))

    monkeypatch.setattr("runner.sweeps.sweeper.check_targets", refuse)
    monkeypatch.chdir(tmp_path)
    with composing(tmp_path / "conf"):
        sweep = _grid(overrides)
    config = tiny(mode=mode, scaffolds={"body": ScaffoldConfig(checkpoint="/nosuch/model")})
    with pytest.raises(ConfigError) as raised:
        sweep.check_trials([ComposedPoint(Point((), {}), config, "f")])
    assert [each.state for each in raised.value.problems] == reported
