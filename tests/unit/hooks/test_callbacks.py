"""Keras callbacks in a run see, change and stop what they do in `keras.Model.fit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.config.schema import RunConfig, TrainConfig
from runner.errors import ConfigError, UserCodeError
from runner.graph import model_values
from tests.samples.keras_callbacks import fitted
from tests.support.configs import tiny
from tests.support.runs import Runs, disturbed, evaluations

HERE = "tests.samples.keras_callbacks"
EPOCHS, LENGTH = 4, 5


def keras_callback(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"keras.callbacks.{name}", **arguments}


def own(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{HERE}.{name}", **arguments}


def config(folder: Path, callbacks: dict[str, Any], **changes: Any) -> RunConfig:
    fields: dict[str, Any] = {
        "run_dir": str(folder),
        "data": own("Few"),
        "model": own("net"),
        "loss": None,
        "metrics": {},
        "optimizer": {},
        "train": TrainConfig(epochs=EPOCHS, log_every=LENGTH, checkpoint_every=3),
        "callbacks": callbacks,
    }
    return tiny(**{**fields, **changes})


def weights_of(runs: Runs) -> dict[str, Any]:
    return {name: value for name, value in runs.values().items() if name.startswith("dense")}


def require_close(first: Any, second: Any) -> None:
    """Compares nested JSON, numbers within 1e-5."""
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        first, second = list(first.values()), [second[key] for key in first]
    if isinstance(first, list):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            require_close(one, other)
    elif isinstance(first, float):
        assert first == pytest.approx(second, rel=1e-5, abs=1e-6)
    else:
        assert first == second


def witness(path: Path) -> dict[str, Any]:
    return {"witness": own("Witness", file=str(path))}


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


PLATEAU = keras_callback("ReduceLROnPlateau", factor=0.3, patience=1, min_delta=0.5)
SCHEDULE = keras_callback(
    "LearningRateScheduler", schedule={"_target_": f"{HERE}.falling", "_partial_": True}
)
STOPPING = keras_callback(
    "EarlyStopping", monitor="val_accuracy", patience=1, restore_best_weights=True
)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "rates and weights": ("net", {"plateau": PLATEAU, "schedule": SCHEDULE, "halve": own("Halve")}),
    "stopping": ("net", {"stop": STOPPING}),
    "own step": ("stepping", {"plateau": PLATEAU, "halve": own("Halve")}),
    "own step, stopped": ("stepping", {"stop": own("StopAt", step=8)}),
}


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session lends the model its values, as those of a large one."""
    monkeypatch.setattr(model_values, "_PART", 0)
    monkeypatch.setattr(model_values, "_LARGE", 1)


# Keras converts variables by `np.array(..., copy=False)`.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.usefixtures("lent")
@pytest.mark.parametrize("case", CASES)
def test_callbacks_of_a_large_model_see_and_do_what_they_do_in_fit(
    case: str, tmp_path: Path
) -> None:
    test_callbacks_see_and_do_what_they_do_in_fit(case, tmp_path)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("case", CASES)
def test_callbacks_see_and_do_what_they_do_in_fit(case: str, tmp_path: Path) -> None:
    files = [tmp_path / "run.jsonl", tmp_path / "fit.jsonl"]
    model, callbacks = CASES[case]
    runs = Runs(tmp_path / "runs")
    settings = {"model": own(model), "seed": 3}
    runs.start(config(runs.folder, {**callbacks, **witness(files[0])}, **settings))
    stopped = [line for line in runs.lines() if line.endswith("callbacks.stop stopped it")]
    assert len(stopped) == ("stop" in callbacks)
    trained = fitted(config(runs.folder, {**callbacks, **witness(files[1])}, **settings), EPOCHS)
    require_close(lines(files[0]), lines(files[1]))
    values = runs.values()
    for variable in trained.trainable_variables:
        name = variable.path.removeprefix(f"{trained.name}/")
        np.testing.assert_allclose(values[name], variable.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
# A file of a run that fails, which CSVLogger leaves open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("model", ["net", pytest.param("stepping", marks=pytest.mark.soak)])
def test_a_killed_run_with_callbacks_and_hooks_ends_as_if_it_had_not(
    model: str, tmp_path: Path
) -> None:
    """It failed within an epoch, and the step before the failure was not saved."""
    stop = keras_callback("EarlyStopping", patience=2, restore_best_weights=True)
    settings: dict[str, Any] = {"model": own(model)}
    logs, values, files = [], [], []
    for name in ("undisturbed", "failed"):
        runs = Runs(tmp_path / name)
        file, table = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.csv"
        callbacks = {"plateau": PLATEAU, "stop": stop, "halve": own("Halve"), **witness(file)}
        callbacks["watching"] = own("Watching")
        callbacks["table"] = keras_callback("CSVLogger", filename=str(table))
        if name == "failed":
            settings["hooks"] = disturbed("FailOnce", step=13, marker=str(tmp_path / "marker"))
            with pytest.raises(UserCodeError, match="the hook failed"):
                runs.start(config(runs.folder, callbacks, **settings))
        runs.start(config(runs.folder, callbacks, **settings))
        values.append(runs.values())
        logs.append(lines(file)[-13:])  # Since the last checkpoint.
        files.append(table.read_bytes())
    for name, value in values[0].items():
        assert name == "callbacks" or np.array_equal(values[1][name], value), name
    assert logs[0] == logs[1]
    assert files[0] == files[1]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_callbacks_see_the_averages_during_an_evaluation_of_averages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the session lends a part of the values only, here the kernels."""
    seen = []
    for name in ("small", "large"):
        file = tmp_path / f"{name}.jsonl"
        if name == "large":
            monkeypatch.setattr(model_values, "_PART", 0)
            monkeypatch.setattr(model_values, "_LARGE", 16)
        train = TrainConfig(epochs=2, log_every=LENGTH, ema_decay=0.5)
        callbacks = {"weights": own("Weights", file=str(file))}
        Runs(tmp_path / name).start(config(tmp_path / name, callbacks, train=train))
        seen.append(lines(file))
    assert seen[0] == seen[1]
    assert [name for name, _ in seen[0]] == ["test", "epoch"] * 2
    for (_, averages), (_, weights) in zip(seen[0][::2], seen[0][1::2], strict=True):
        assert not any(map(np.array_equal, averages, weights))


# A file of a run that fails, which CSVLogger leaves open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.usefixtures("lent")
def test_a_killed_run_of_a_large_model_ends_as_if_it_had_not(tmp_path: Path) -> None:
    test_a_killed_run_with_callbacks_and_hooks_ends_as_if_it_had_not("net", tmp_path)


def test_an_error_of_a_callback_shows_its_frames(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError) as caught:
        Runs(tmp_path).start(config(tmp_path, {"mine": own("Failing")}))
    assert "callbacks.mine raised ZeroDivisionError: the callback failed" in str(caught.value)
    assert "in divide" in caught.value.details
    assert "runner/hooks" not in caught.value.details


def test_epochs_count_passes_over_data_that_end(tmp_path: Path) -> None:
    """In the middle of the last one the run is killed, and the data continue there."""
    values = []
    for name in ("undisturbed", "failed"):
        runs = Runs(tmp_path / name)
        settings = config(runs.folder, {})
        if name == "failed":
            settings.hooks = disturbed("FailOnce", step=18, marker=str(tmp_path / "marker"))
            with pytest.raises(UserCodeError, match="the hook failed"):
                runs.start(settings)
        runs.start(settings)
        values.append(runs.values())
        assert evaluations(runs.lines())[-1] == EPOCHS * LENGTH
    assert evaluations(runs.lines()) == [20]
    assert [line.split()[2:4] for line in runs.lines() if "steps/s" in line] == [["epoch", "4"]]
    for name, value in values[0].items():
        assert np.array_equal(values[1][name], value), name


@pytest.mark.parametrize("train", [{"epochs": 2}, {"steps": 9}])
def test_the_length_of_an_epoch_must_be_known(train: dict[str, Any], tmp_path: Path) -> None:
    blobs = {"_target_": "tests.samples.experiment.Blobs", "batch_size": 8, "seed": 0}
    settings = config(tmp_path, {"stop": STOPPING}, data=blobs, train=TrainConfig(**train))
    with pytest.raises(ConfigError) as caught:
        Runs(tmp_path).start(settings)
    (problem,) = caught.value.problems
    assert problem.state == ("train.epochs is 2" if "epochs" in train else "callbacks are set")
    assert problem.remedy == "set train.steps_per_epoch=8"
    assert not list(tmp_path.glob("*/run.json"))


def test_a_rate_that_is_a_schedule_cannot_be_set(tmp_path: Path) -> None:
    decay = {
        "_target_": "tensorflow.compat.v1.train.exponential_decay",
        "learning_rate": 0.1,
        "global_step": "${graph:global_step}",
        "decay_steps": 3,
        "decay_rate": 0.9,
    }
    adam = {"_target_": "tensorflow.compat.v1.train.AdamOptimizer", "learning_rate": decay}
    settings = config(tmp_path, {"schedule": SCHEDULE}, optimizer=adam)
    with pytest.raises(UserCodeError, match="its learning rate is not settable"):
        Runs(tmp_path).start(settings)
