"""Programs in the style of keras.io: the numbers of `fit`, bit for bit again after a kill."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from runner.config.choices import ExportFormat, Mode
from runner.config.schema import ExportConfig, PredictConfig, RunConfig
from runner.errors import UserCodeError
from runner.graph.build import build_graph
from tests.keras_io import PROGRAMS, Program, features, of_fit
from tests.support.configs import tiny
from tests.support.runs import Runs, disturbed, short

SEED, STEPS = 3, 20


def every_program(*fast: str) -> pytest.MarkDecorator:
    """Runs a test for each program; `make test` only for the `fast`, as all take minutes."""
    soak = pytest.mark.soak
    names = [name if name in fast else pytest.param(name, marks=soak) for name in PROGRAMS]
    return pytest.mark.parametrize("name", names)


def config(program: Program, **changes: Any) -> RunConfig:
    module = program.model.__module__
    fields: dict[str, Any] = {
        "seed": SEED,
        "data": {"_target_": "tests.keras_io.Data", "program": program.name},
        "model": {"_target_": f"{module}.{program.name}"},
        "loss": None,
        "metrics": {},
        "optimizer": {},
        "train": short(checkpoint_every=10, objective=program.objective),
        **program.config,
    }
    return tiny(**{**fields, **changes})


def logs_of_fit(program: Program) -> list[Mapping[str, float]]:
    """Returns the log of each step of `fit`, with metrics of the step's batch alone.

    Where the data tell the length of an epoch, they are those of the epoch so far, as in a run.
    """
    keras.utils.set_random_seed(SEED)
    model = program.model()
    logged: list[Mapping[str, float]] = []

    class Log(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            logged.append({name: float(value) for name, value in logs.items()})
            if not has_epochs:
                model.reset_metrics()

    arguments = {**of_fit(program), "verbose": 0, "shuffle": False, **program.fit}
    has_epochs = isinstance(arguments["x"], keras.utils.PyDataset)
    model.fit(callbacks=[Log()], **arguments)
    return logged[:STEPS]


@every_program("conditional_gan", "endpoint_layer", "own_test_step")
def test_a_step_has_the_numbers_of_fit(name: str) -> None:
    program = PROGRAMS[name]
    expected = logs_of_fit(program)
    built = build_graph(config(program), "validation", train=True)
    training = built.training
    assert training is not None
    with built.graph.as_default(), tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        session.run([tf.compat.v1.local_variables_initializer(), training.input_initializer])
        session.run(tf.compat.v1.tables_initializer())
        steps = [session.run((dict(training.values), training.train_op))[0] for _ in range(STEPS)]
    for values, logged in zip(steps, expected, strict=True):
        assert set(values) == set(logged)
        for metric in logged:
            np.testing.assert_allclose(values[metric], logged[metric], rtol=1e-5, atol=1e-6)


@every_program()  # `make test` resumes runs of `runner.fit`: tests/unit/test_fit_parity.py.
def test_a_run_that_failed_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    undisturbed, failed = Runs(tmp_path / "undisturbed"), Runs(tmp_path / "failed")
    objective = undisturbed.start(config(program, run_dir=str(undisturbed.folder)))
    hooks = disturbed("FailOnce", step=13, marker=str(tmp_path / "marker"))
    with pytest.raises(UserCodeError, match="the hook failed"):
        failed.start(config(program, run_dir=str(failed.folder), hooks=hooks))
    again = failed.start(config(program, run_dir=str(failed.folder), hooks=hooks))
    values, expected = failed.values(), undisturbed.values()
    assert set(values) == set(expected)
    for variable, value in expected.items():
        assert np.array_equal(values[variable], value), variable
    # TensorFlow's graph optimiser chooses the order of a metric's sums, again in each session.
    assert again == pytest.approx(objective, rel=1e-6, nan_ok=True)


@every_program("own_test_step", "vae")
def test_a_run_is_evaluated_and_its_exports_predict_what_it_predicts(
    name: str, tmp_path: Path
) -> None:
    program, runs = PROGRAMS[name], Runs(tmp_path / "runs")
    runs.start(config(program, run_dir=str(runs.folder)))
    if program.evaluates:
        objective = runs.start(config(program, run_dir=str(runs.folder), mode=Mode.evaluate))
        assert objective is not None
        assert np.isfinite(objective)
    predict_and_export(program, runs, tmp_path)


def predict_and_export(program: Program, runs: Runs, folder: Path) -> None:
    """Compares the predictions of a run with those of its exports."""
    which = "best" if program.evaluates else "latest"
    batches = {"_target_": "tests.keras_io.features", "program": program.name}
    predict = PredictConfig(which=which, data=batches, to=str(folder / "predicted.npz"))
    runs.start(config(program, run_dir=str(runs.folder), mode=Mode.predict, predict=predict))
    with np.load(folder / "predicted.npz") as arrays:
        predicted = [*arrays.values()]
    files = {}
    for kind in ExportFormat:
        export = ExportConfig(which=which, format=kind)
        runs.start(
            config(
                program, run_dir=str(runs.folder), mode=Mode.export, export=export, predict=predict
            )
        )
        files[kind] = runs.lines()[-1].rpartition(" to ")[2]
    model = program.model()
    model.predict(features(program.name), verbose=0)
    with warnings.catch_warnings():
        # The optimizers of this model have not trained.
        warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
        model.load_weights(files[ExportFormat.weights])
    outputs = keras.tree.flatten(model.predict(features(program.name), verbose=0))
    for output, expected in zip(outputs, predicted, strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    if program.loads:
        loaded = keras.models.load_model(files[ExportFormat.keras])
        again = keras.tree.flatten(loaded.predict(features(program.name), verbose=0))
        for output, expected in zip(again, predicted, strict=True):
            np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    served = keras.layers.TFSMLayer(files[ExportFormat.savedmodel], call_endpoint="serve")
    ((batch,),) = features(program.name).take(1)
    results = keras.tree.flatten(served(batch))
    assert len(results) == len(predicted)
