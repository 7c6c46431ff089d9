"""The command line of sweeps: what is refused before anything is made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hydra import compose
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.types import HydraContext

from runner.config.choices import Mode
from runner.config.schema import ScaffoldConfig
from runner.errors import ConfigError, Problem
from runner.sweeps.grid_sweeper import GridSweeper
from runner.sweeps.points import ComposedPoint, Point
from tests.support.command_line import CONF, LINEAR, Command, in_process
from tests.support.configs import tiny


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """Sweeps over the tiny experiment in this process, in an empty directory."""
    return in_process(tmp_path, monkeypatch, capfd, *CONF, "-m", "+experiment=tiny")


# Of the model of one weight, where trials run.
SMALL = LINEAR[1:]
OPTUNA = "hydra/sweeper=optuna"
RATE = "optimizer.learning_rate=interval(0.1,1)"
BODY = "scaffolds.body.variables.include=['body/*']"
MISTAKES: dict[tuple[str, ...], tuple[str, str]] = {
    ("mode=plan,train", "sweep.retries=0,1"): ("mode is swept over", "sweep.retries is swept over"),
    (OPTUNA, "seed=1"): ("there is nothing to search", "interval(1e-4, 1e-1)"),
    (OPTUNA, "optimizer.learning_rat=interval(0.1,1)"): ("optimizer.learning_rat is not set", ""),
    (
        *("+model.unts=3,4", "tracking=none", BODY, "hydra.job.chdir=true"),
        "scaffolds.body.checkpoint=null,/nosuch/model",
    ): (
        "model.unts is not an argument of tests.samples.experiment.Net",
        "scaffolds.body.checkpoint: there is no checkpoint at /nosuch/model",
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


@pytest.mark.usefixtures("forked_followers")
def test_a_late_mistake_is_reported_after_what_is_done(command: Command, tmp_path: Path) -> None:
    sampler = "hydra.sweeper.sampler={_target_: tests.samples.samplers.FailsLater}"
    tensorboard = ("tracking.uri=null", "tracking.tensorboard=true")
    short = ("sweep.figures=false", "train.steps=2")
    outcome = command(*SMALL, OPTUNA, RATE, sampler, *tensorboard, *short)
    assert outcome.code == 1
    assert "\ntrial  " in outcome.out
    assert " FINISHED  tiny/001\n" in outcome.out
    assert "tests.samples.samplers.FailsLater, which draws no trial" in outcome.err
    assert "Traceback" not in outcome.err
    # So does the parent run.
    (journal,) = tmp_path.glob("runs/sweeps/001/**/*.journal")
    assert '"FAILED"' in journal.read_text()


def test_no_configuration_of_a_trial_outlives_it(command: Command, tmp_path: Path) -> None:
    callback = "+hydra.callbacks.alive={_target_: tests.samples.callbacks.ResultsAlive,file: alive}"
    outcome = command(*SMALL, callback, "seed=1,2,3", "mode=plan")
    assert outcome.code == 0, outcome.err
    assert len(set((tmp_path / "alive").read_text().splitlines())) == 1


def test_a_sweep_without_optuna_that_masks_secrets_and_is_evaluated(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "runner.sweeps.study_figures", raising=False)
    given = (
        "seed=10001,10002",
        *SMALL,
        "hydra.sweeper.params={train.steps: 2, seed: 3}",
        "tracking.mask.names=[seed,data.seed]",
        "tracking=none",
        "train.evaluate_every=2",
    )
    outcome = command(*given, "sweep.threshold=9")
    assert outcome.code == 0, outcome.err
    assert "no further figures: " in outcome.out
    figures = [file.name for file in tmp_path.glob("runs/sweeps/001/figures/*")]
    assert figures == ["learning_curves.png"]
    assert {line.split()[1] for line in outcome.out.splitlines() if "FINISHED" in line} == {
        "***1",
        "***2",
    }
    texts = [
        file.read_text()
        for pattern in ("runs/sweeps/001/*.json", "runs/tiny/*/*.json", "runs/tiny/*/*.yaml")
        for file in tmp_path.glob(pattern)
    ]
    assert len(texts) >= 7
    assert not any("10001" in text or "10002" in text for text in texts)
    _, table = outcome.out.split("\nsteps to validation/loss 9\n")
    head, row = (line.split() for line in table.splitlines()[:2])
    assert head[:4] == ["reached", "fewest", "median", "most"]
    assert row[:6] == ["2", "of", "2", "2", "2", "2"]

    outcome = command("seed=choice(10001)", *given[1:], "mode=evaluate")
    assert outcome.code == 0, outcome.err
    (head,) = [line.split() for line in outcome.out.splitlines() if line.startswith("trial  ")]
    assert head == ["trial", "seed", "test/loss", "status", "run"]


NO_SOURCE = "scaffolds.body.checkpoint: there is no checkpoint at /nosuch/model"


@pytest.mark.parametrize(
    ("override", "mode", "reported"),
    [
        ("hydra/launcher=processes", Mode.train, ["no such target", NO_SOURCE]),
        ("hydra/launcher=slurm", Mode.train, ["no such target"]),
        ("hydra.job.chdir=true", Mode.plan, ["hydra.job.chdir is true", "no such target"]),
    ],
)
@pytest.mark.usefixtures("compose")
def test_sources_are_looked_for_with_targets_where_trials_train_here(
    override: str, mode: Mode, reported: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(composed: object) -> None:
        raise ConfigError(Problem("no such target"))

    monkeypatch.setattr("runner.sweeps.sweeper.check_targets", refuse)
    sweep = GridSweeper()
    sweep.setup(
        hydra_context=HydraContext(GlobalHydra.instance().config_loader(), Callbacks()),
        task_function=lambda config: None,
        config=compose("config", [override], return_hydra_config=True),
    )
    config = tiny(mode=mode, scaffolds={"body": ScaffoldConfig(checkpoint="/nosuch/model")})
    with pytest.raises(ConfigError) as raised:
        sweep.check_trials([ComposedPoint(Point((), {}), config, "f")])
    assert [problem.state for problem in raised.value.problems] == reported
