"""The command line: one clear message for each mistake, and the exit codes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner.api import start
from runner.commands import command_line
from runner.config.choices import Mode
from runner.config.keys import annotation, options
from runner.config.schema import RunConfig
from runner.errors import InterruptedRunError
from runner.system.lifeline import LIFELINE
from tests.conformance.goldens import save_npz
from tests.support.command_line import CONF, Command

ROOT = Path(__file__).resolve().parents[3]


MISTAKES_FOUND_LATER = {
    "+model.unitz=3": ("model.unitz is not an argument of tests.samples.experiment.Net", "units, "),
    "model._target_=tests.samples.experiment.Nett": (
        "model._target_ is 'tests.samples.experiment.Nett'",
        "tests.samples.experiment.Net",
    ),
    "tracking.uri=5": ("tracking.uri='5' cannot be used", "sqlite:///mlflow.db"),
}


@pytest.mark.usefixtures("forked_followers")
@pytest.mark.parametrize("mistake", MISTAKES_FOUND_LATER)
def test_a_mistake_that_only_the_run_finds(command: Command, mistake: str, tmp_path: Path) -> None:
    state, below = MISTAKES_FOUND_LATER[mistake]
    outcome = command(*CONF, "+experiment=tiny", mistake)
    assert outcome.code == 2
    assert f"runner: {state}\n" in outcome.err
    assert below in outcome.err
    assert "Traceback" not in outcome.err
    assert list(tmp_path.iterdir()) == []


NO_COMMANDS = {
    "inspekt": "inspect",
    "snyc": "sync",
    "Map": "map",
    "help": "--help",
    "version": "--version",
    "lstm_cnn": "init",
    "runs/lstm_cnn/001": "init",
}


@pytest.mark.parametrize("word", NO_COMMANDS)
def test_a_word_that_is_no_command(word: str, command: Command, tmp_path: Path) -> None:
    outcome = command(word, "runs/x", "--all")
    assert outcome.code == 2
    state, _, remedy, choices = outcome.err.splitlines()
    assert state == f"runner: there is no command {word!r}"
    assert remedy.endswith(f"an experiment is run by +experiment={word}")
    assert choices.startswith(f"  choices: {NO_COMMANDS[word]}, ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("columns", [40, 50, 80])
@pytest.mark.parametrize("experiment", [(), ("+experiment=tiny",)])
def test_help_is_folded_at_the_width_of_the_terminal_but_for_what_is_typed(
    experiment: tuple[str, ...], columns: int, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = command("--help", *CONF, *experiment).out
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = command("--help", *CONF, *experiment).out
    wide = [line.split() for line in narrow.splitlines() if len(line) > columns]
    assert [words for words in wide if len(words) > 1 and "=" not in words[0]] == []
    assert narrow.split() == whole.split()


@pytest.mark.parametrize(
    "arguments",
    [
        ("+experiment=tiny", *CONF, "train.steps=0"),
        ("train.steps=0", f"--config-dir={CONF[1]}", "+experiment=tiny"),
    ],
)
def test_options_may_stand_among_the_overrides(
    command: Command, arguments: tuple[str, ...]
) -> None:
    outcome = command(*arguments)
    assert (outcome.code, outcome.err.splitlines()[0]) == (2, "runner: train.steps is 0")


def test_the_versions_that_decide_a_result(command: Command) -> None:
    pattern = r"runner \S+, TensorFlow \d+\.\d+\.\S+, Keras \d+\.\d+\.\S+\n"
    outcome = command("--version")
    assert re.fullmatch(pattern, outcome.out)
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.parametrize("kind", [ValueError, AttributeError])
def test_an_error_of_the_run_itself_is_not_explained_away(
    command: Command, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail(*arguments: object) -> None:
        raise kind("a bug")

    monkeypatch.setattr(start, "validate", fail)
    outcome = command(*CONF, "+experiment=tiny", "+data.password=hunter22")
    assert outcome.code == 1
    assert "hunter22" not in outcome.err
    first, *_, last = outcome.err.splitlines()
    assert first.startswith("Error executing job with overrides")  # Hydra's
    assert "Traceback (most recent call last):" in outcome.err
    assert last == f"{kind.__name__}: a bug"


def test_a_task_of_a_local_cluster_does_not_report_how_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = InterruptedRunError(signal.SIGTERM, resumable=True)
    assert command_line.fail(error) == 143
    monkeypatch.setenv(LIFELINE, "3")
    assert command_line.fail(error) == 143
    ended = "runner: ended by SIGTERM\n"
    printed = f"{ended}  remedy: the same command continues the run\n{ended}"
    assert capsys.readouterr().err == printed


def test_help_fits_one_screen_and_names_what_there_is_and_nothing_else(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    outcome = command("--help", *CONF)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.strip().splitlines()
    assert len(lines) <= 58
    assert max(map(len, lines)) <= 100
    assert "experiment: digits_cnn, lstm_cnn, program, short_sequences, tiny, warm" in lines
    for mode in options(Mode):
        assert f"  mode={mode} " in outcome.out
    for code in ("0 done", "2 a mistake", "3 a plan", "130 and 143", "1 anything else"):
        assert code in outcome.out
    assert "Hydra" not in outcome.out
    assert [
        name for name in command_line.COMMANDS if not re.search(rf"\b{name}\b", outcome.out)
    ] == []
    shown = outcome.out.partition("\nOptions:\n")[0]
    keys = re.findall(r"(?<![\w/])[+~]?([a-z_]+(?:\.[A-Za-z_]+)*)=[\w\"]", shown)
    assert {"mode", "train.steps", "scaffolds.NAME.checkpoint", "tracking.uri"} <= set(keys)
    groups = {"experiment", "optimizer", "tracking"}
    assert [key for key in keys if key not in groups and annotation(key, RunConfig) is None] == []


@pytest.mark.parametrize("columns", [50, 100])
@pytest.mark.parametrize("name", command_line.COMMANDS)
def test_the_help_of_a_command_waits_for_no_library(
    name: str, columns: int, tmp_path: Path
) -> None:
    script = (
        "import sys; from runner.commands.command_line import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'hydra', 'mlflow', 'tensorflow'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, name, "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": str(columns)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: runner {name} ")
    assert max(map(len, done.stdout.splitlines())) <= columns


# `{run}` is a finished run; `d.npz` differs from `c.npz`, and both hold a `dense/kernel`.
EXIT_CODES = {
    "--help": 0,
    "init project": 0,
    "init c.npz": 2,
    "inspect c.npz": 0,
    "inspect c.npz c.npz": 0,
    "inspect c.npz d.npz": 1,
    "inspect gone": 2,
    "lineage {run}": 0,
    "lineage gone": 2,
    f"lineage {'0' * 32}": 2,
    "verify {run}": 0,
    "verify gone": 2,
    "prove gone c.npz": 2,
    "prove {run} c.npz": 2,
    "sync gone": 2,
    "sync {run}": 2,
    "map keras.layers.Nope c.npz": 2,
    "map tiny.keras gone": 2,
    "map +experiment c.npz": 2,
    "mode=evaluate run_dir={run}": 0,
    "mode=evaluate run_dir=gone": 2,
    "+experiment=tinny": 2,
    "+experiment=tiny mode=plan": 0,
    "+experiment=tiny mode=plan scaffolds.b.variables.include=[haed/]": 3,
    "+experiment=tiny tracking=none model._target_=tests.samples.faulty.Refusing": 1,
}


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    arguments = [*CONF, "+experiment=tiny", "train.steps=2", "tracking=none"]
    subprocess.run(
        [sys.executable, "-m", "runner", *arguments, f"run_dir={folder}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    return folder / "001"


@pytest.mark.parametrize("line", EXIT_CODES)
def test_exit_codes(line: str, command: Command, finished_run: Path, tmp_path: Path) -> None:
    for name, value in (("c", 1.0), ("d", 2.0)):
        save_npz(tmp_path / f"{name}.npz", **{"dense/kernel": value})
    arguments = line.format(run=finished_run).split()
    outcome = command(*(CONF if "=" in line else ()), *arguments)
    assert outcome.code == EXIT_CODES[line], outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.err or outcome.code == 0 or "d.npz" in line


def test_python_m_runner(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "runner", *CONF, "+experiment=tinny"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("runner: experiment 'tinny' is not known\n")
    assert list(tmp_path.iterdir()) == []
