"""What surrounds the training of a program: callbacks that ask the model, and stages of runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from runner.config.instantiation import build_target
from runner.config.schema import RunConfig, ScaffoldConfig, TrainConfig, VariablesConfig
from runner.errors import UserCodeError
from runner.planning.model_variables import keras_variables
from tests.keras_io import PROGRAMS, Data
from tests.support.configs import tiny
from tests.support.runs import Runs, disturbed

SEED, EPOCHS, LENGTH = 3, 4, 5
HERE = "tests.keras_io"
CALLBACKS: Mapping[str, Mapping[str, Any]] = {
    "small_gpt": {"_target_": f"{HERE}.surroundings.TextGenerator"},
    "fraud": {"_target_": f"{HERE}.surroundings.scores", "seed": 2},
}


def config(folder: Path, program: str, **changes: Any) -> RunConfig:
    fields: dict[str, Any] = {
        "run_dir": str(folder),
        "seed": SEED,
        "data": {"_target_": f"{HERE}.Data", "program": program},
        "model": {"_target_": f"{PROGRAMS[program].model.__module__}.{program}"},
        "loss": None,
        "metrics": {},
        "optimizer": {},
        "train": TrainConfig(epochs=EPOCHS, steps_per_epoch=LENGTH, log_every=LENGTH),
    }
    return tiny(**{**fields, **changes})


def fitted(model: keras.Model, data: Data, *callbacks: keras.callbacks.Callback) -> None:
    validation = data.validation() if data.program.evaluates else None
    length = {"epochs": EPOCHS, "steps_per_epoch": LENGTH}
    settings = {"callbacks": list(callbacks), "verbose": 0, "shuffle": False}
    model.fit(data.train(), validation_data=validation, **length, **settings)


def lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.soak
@pytest.mark.parametrize("program", CALLBACKS)
def test_a_callback_asks_the_model_of_a_run_as_in_fit(program: str, tmp_path: Path) -> None:
    """The run is killed in its third epoch, and its callback continues where it was."""

    def node(name: str) -> dict[str, Any]:
        return {**CALLBACKS[program], "file": str(tmp_path / name)}

    keras.utils.set_random_seed(SEED)
    fitted(PROGRAMS[program].model(), Data(program), build_target("callback", node("fit")))
    runs = Runs(tmp_path / "runs")
    hooks = disturbed("FailOnce", step=13, marker=str(tmp_path / "marker"))
    settings = config(runs.folder, program, callbacks={"asks": node("run")}, hooks=hooks)
    with pytest.raises(UserCodeError, match="the hook failed"):
        runs.start(settings)
    runs.start(settings)
    asked, expected = lines(tmp_path / "run"), lines(tmp_path / "fit")
    assert len(expected) == EPOCHS
    for (epoch, result), (number, truth) in zip(asked[-EPOCHS:], expected, strict=True):
        assert epoch == number
        assert result == (pytest.approx(truth, rel=1e-4) if isinstance(truth, dict) else truth)


@dataclass(frozen=True)
class Stage:
    """A run that starts from the one before.

    Attributes:
      program: the name of the program.
      arguments: arguments of its model.
      restored: patterns of the variables that start from the stage before; none in the first.
      trainable: whether they train, by the scaffold.
    """

    program: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    restored: tuple[str, ...] = ()
    trainable: bool = True


BODY = ("words/*", "attention/*", "norm/*")
STORIES = {
    "supervised contrastive": (
        Stage("supervised_contrastive"),
        Stage("contrastive_classifier", {"frozen": True}, ("encoder/*",)),
        Stage("contrastive_classifier", {"frozen": False}, ("encoder/*", "classifier/*")),
    ),
    "masked language model": (
        Stage("masked_language_model"),
        Stage("text_classifier", {}, BODY, trainable=False),
        Stage("text_classifier", {}, (*BODY, "classifier/*")),
    ),
}


def prefixes(stage: Stage) -> tuple[str, ...]:
    return tuple(pattern.removesuffix("*") for pattern in stage.restored)


@pytest.mark.soak
@pytest.mark.parametrize("story", STORIES)
def test_stages_that_start_from_the_run_before_end_as_in_keras(story: str, tmp_path: Path) -> None:
    """Keras copies the weights from model to model, and freezes layers by `trainable`."""
    before: dict[str, Any] = {}
    last: str | None = None
    for number, stage in enumerate(STORIES[story]):
        keras.utils.clear_session()
        keras.utils.set_random_seed(SEED)
        program = PROGRAMS[stage.program]
        model = program.model(**stage.arguments)
        variables = keras_variables(model)
        for name, variable in variables.items():
            if name.startswith(prefixes(stage)):
                variable.assign(before[name])
        for layer in model.layers if not stage.trainable else ():
            layer.trainable = not f"{layer.name}/".startswith(prefixes(stage))
        fitted(model, Data(stage.program))
        runs = Runs(tmp_path / str(number))
        scaffold = ScaffoldConfig(
            VariablesConfig(list(stage.restored)), last, trainable=stage.trainable
        )
        scaffolds = {"before": scaffold} if last else {}
        target = f"{program.model.__module__}.{stage.program}"
        node = {"_target_": target, **stage.arguments}
        runs.start(config(runs.folder, stage.program, model=node, scaffolds=scaffolds))
        trained = runs.values()
        start, before = before, {name: variable.numpy() for name, variable in variables.items()}
        for name, value in before.items():
            np.testing.assert_allclose(trained[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
        frozen = not (stage.trainable and not stage.arguments.get("frozen"))
        for name in (name for name in before if name.startswith(prefixes(stage) or "-")):
            moved = not np.array_equal(before[name], start[name])
            assert moved == (not frozen or name.startswith("classifier/")), name
        last = str(runs.folder / "001")
