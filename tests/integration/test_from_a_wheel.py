"""What a new user meets: an installed wheel, a folder with an odd name, and a project in it.

The package is that of the wheel, and not of the checkout; the processes are forks of one that has
imported it.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from mlflow import MlflowClient
from mlflow.entities import Run

from runner.tracking.address import address_of
from tests.support.forked import ROOT, Forks, environment
from tests.support.runs import wait_for

from .conftest import CONTROL, finish, in_terminal, output_of

# Of the project's folder and of the home.
NAME = "my project %41 [1] #2 it's a=b größe🙂"
MINE = '''
import pathlib
import time

import keras
import numpy as np

X = np.random.default_rng(0).uniform(-1, 1, (64, 2)).astype("float32")
Y = (X.prod(axis=1) > 0).astype("int32")


def compiled():
    hidden = keras.layers.Dense(4, activation="relu", name="-hidden.1")
    model = keras.Sequential([hidden, keras.layers.Dense(2, name="head")])
    recall = keras.metrics.SparseTopKCategoricalAccuracy(1, name="recall@1")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True), metrics=[recall])
    return model


class Nan(keras.callbacks.EarlyStopping):
    """With a name that is a number to YAML."""


def arrays():
    return X, Y


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pathlib.Path("begun").touch()
        time.sleep(0.02)


def nothing():
    return X[:0], Y[:0]


def guarded(key):
    print("logs in by", key)
    raise ConnectionError(f"refused: {key!r}")
'''
CONFIG = """
# @package _global_
defaults: [/data: fit, _self_]
name: größe=1
data: {x: {_target_: mine.arrays, _partial_: true}, batch_size: 16, validation_split: 0.25}
model: {_target_: mine.compiled}
train: {epochs: 3, objective: validation/recall@1, goal: maximize}
"""
STOPS = "{_target_: mine.Nan, monitor: loss, min_delta: 9, restore_best_weights: true}"


@dataclass(frozen=True)
class User:
    """Types commands in a project's folder."""

    folder: Path
    forks: Forks

    @property
    def env(self) -> dict[str, str]:
        return environment() | {"HOME": str(self.folder.parent)}

    def start(self, *arguments: str, module: str = "runner") -> subprocess.Popen[str]:
        return self.forks.start(
            ["python", "-m", module, *arguments],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def runs(self, *arguments: str, module: str = "runner", code: int = 0) -> str:
        """Returns all output of a command that ends with this code."""
        done = finish(self.start(*arguments, module=module))
        assert done.returncode == code, done.stdout + done.stderr
        return str(done.stdout + done.stderr)

    def mine(self, *arguments: str, code: int = 0) -> str:
        """The same of a command on the project's experiment."""
        return self.runs("--config-dir", "conf", "+experiment=mine", *arguments, code=code)

    def printed(self, output: str, name: str) -> str:
        """Returns the output of a command that an earlier output proposes in a line."""
        (line,) = re.findall(rf"^{name}: +(.*)$", output, re.MULTILINE)
        words = shlex.split(line)
        return self.runs(*words[words.index("runner") + 1 :])

    def tracked(self) -> list[Run]:
        client = MlflowClient(address_of("sqlite:///mlflow.db", self.folder).uri)
        ids = [experiment.experiment_id for experiment in client.search_experiments()]
        return list(client.search_runs(ids, order_by=["start_time ASC"]))


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Forks of a process that has imported the wheel's package."""
    folder = tmp_path_factory.mktemp("wheel")
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    zipfile.ZipFile(wheel).extractall(folder / "site")
    forks = Forks(folder, folder / "site")
    yield forks
    forks.close()


@pytest.fixture(scope="module")
def user(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> User:
    folder = tmp_path_factory.mktemp("home") / NAME / NAME
    (folder / "conf" / "experiment").mkdir(parents=True)
    (folder / "mine.py").write_text(MINE, encoding="utf-8")
    (folder / "conf" / "experiment" / "mine.yaml").write_text(CONFIG.lstrip(), encoding="utf-8")
    return User(folder, forks)


@pytest.fixture(scope="module")
def trained(user: User) -> str:
    """The output of a run that a callback ends early, and that has been recorded."""
    return user.mine(f"+callbacks.nan={STOPS}")


def test_a_run_says_what_ended_it_and_which_weights_remain(trained: str) -> None:
    assert "ended at step 6 of 9: callbacks.nan stopped it\n" in trained
    assert "weights: as callbacks.nan left them at the end of training\n" in trained
    assert "recall@1" in trained


def test_the_commands_that_a_run_proposes_work(user: User, trained: str) -> None:
    assert "test  loss " in user.printed(trained, "test")
    assert "model:   models:/" in user.printed(trained, "export")
    outside = user.folder.parent
    printed = re.search("^test: +(.*)$", trained, re.MULTILINE)
    assert printed is not None
    (run_dir,) = shlex.split(printed[1])[-1:]
    refused = User(outside, user.forks).runs("mode=evaluate", run_dir, code=2)
    assert "TensorFlow takes *, ?, [ and \\ in a path for a pattern" in refused
    assert "remedy: begin where the path has none: cd " in refused


def test_mlflow_has_what_was_chosen_and_the_learning_curves(user: User, trained: str) -> None:
    run = user.tracked()[0]
    assert (run.info.status, run.info.run_name) == ("FINISHED", "größe=1 001")
    assert len(run.data.params) < 30
    assert run.data.params["model._target_"] == "mine.compiled"
    assert "validation/recall_x0040_1" in run.data.metrics, "MLflow takes no @"
    client = MlflowClient(address_of("sqlite:///mlflow.db", user.folder).uri)
    figures = client.list_artifacts(run.info.run_id, "figures")
    assert "learning_curves.png" in [Path(file.path).name for file in figures]


@pytest.mark.parametrize("columns", [50, 120, None])
def test_a_plan_fits_the_terminal_and_80_columns_where_it_is_piped(
    user: User, columns: int | None
) -> None:
    command = ["python", "-m", "runner", "--config-dir", "conf", "+experiment=mine", "mode=plan"]
    if columns is None:
        output = user.runs(*command[3:])
    else:
        process = in_terminal(user.forks, command, user.folder, user.env, columns=columns)
        output = CONTROL.sub("", output_of(process))
        assert process.wait() == 0, output
    lines = [line.rstrip() for line in output.splitlines() if "sha256:" not in line]
    assert max(map(len, lines)) <= (columns or 80)
    indented = any(line.startswith("  GlorotUniform") for line in lines)
    assert indented == (columns == 50), "two lines a variable, where a table does not fit"


SLOWLY = (
    *("+experiment=mine", "+callbacks.slow._target_=mine.Slow", "train.epochs=1000"),
    *("tracking=none", "train.evaluate_every=never"),
)


def test_quoted_strings_are_swept_as_strings(user: User) -> None:
    user.mine("-m", "name=choice('1.10','null')", "train.epochs=1")
    assert {"1.10", "null"} <= {path.name for path in (user.folder / "runs").iterdir()}


def test_a_search_is_for_a_metric_of_the_compiled_model(user: User) -> None:
    search = ("hydra/sweeper=optuna", "hydra/sweeper/sampler=random", "hydra.sweeper.n_trials=1")
    printed = user.mine("-m", *search, "name=search", "train.epochs=choice(1,2)")
    assert "validation/recall@1" in printed


def test_ctrl_c_leaves_no_bar_behind(user: User) -> None:
    (user.folder / "begun").unlink(missing_ok=True)
    command = ["python", "-m", "runner", "--config-dir", "conf", *SLOWLY]
    process = in_terminal(user.forks, command, user.folder, user.env, columns=80)
    wait_for((user.folder / "begun").exists)
    process.send_signal(signal.SIGINT)
    output = output_of(process)
    assert process.wait() == 130, output
    _, _, last = output.rpartition("saved: ")
    assert "runner: ended by SIGINT" in last
    assert "\u2501" not in last, "no bar below the last lines"


def test_a_process_of_its_own_ends_by_a_signal_without_a_word_of_libraries(user: User) -> None:
    (user.folder / "begun").unlink(missing_ok=True)
    site = user.forks.root
    process = subprocess.Popen(
        [sys.executable, "-m", "runner", "--config-dir", "conf", *SLOWLY],
        cwd=user.folder,
        env=user.env | {"PYTHONPATH": str(site)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for((user.folder / "begun").exists, 120.0)
    process.send_signal(signal.SIGTERM)
    done = finish(process)
    ended = "runner: ended by SIGTERM\n  remedy: the same command continues the run\n"
    assert (done.returncode, done.stderr) == (143, ended)


def test_mistakes_are_messages(user: User) -> None:
    weights = user.mine("class_weight={a: 3.0}", code=2)
    assert weights.startswith("runner: class_weight has the key a\n")
    assert user.mine("data.x._target_=mine.nothing", code=2).startswith(
        "runner: the data are empty"
    )
    assert "choices: adagrad, adam" in user.mine("optimizer=compiled", code=2)
    secret = ("+data.x.key='s3cret word'", "data.x._target_=mine.guarded")
    failed = user.mine(*secret, "tracking=none", code=1)
    assert "logs in by ***" in failed
    assert "s3cret" not in failed


START = """
import runner
from runner.examples.resnet import build

model = build()
print(runner.__file__)
plan = runner.warm_start(model, "scaffolds.yaml")
print(plan)
assert runner.prove(model, "reference.npz", plan).agrees
"""


def test_a_file_of_pytorch_becomes_a_proven_start(user: User) -> None:
    user.runs(module="runner.examples.resnet")
    mapped = finish(
        user.start(
            *("map", "runner.examples.resnet.build", "resnet.pt", "--reference", "reference.npz")
        )
    )
    assert mapped.returncode == 0, mapped.stderr
    (user.folder / "scaffolds.yaml").write_text(mapped.stdout, encoding="utf-8")
    (user.folder / "start.py").write_text(START, encoding="utf-8")
    output = user.runs(module="start")
    assert output.startswith(f"{user.forks.root}/runner/__init__.py\n77 of 77 model variables")
