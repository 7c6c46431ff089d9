"""`runner.fit(model)` gives the numbers and weights of `model.fit`, and again after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops
from numpy.typing import NDArray

import runner
from runner.errors import InterruptedRunError, UserCodeError
from tests.keras_io import PROGRAMS, Data
from tests.keras_io.constructs import ARRAYS, CONSTRUCTS, X, Y, small
from tests.support.runs import disturbed


@dataclass(frozen=True)
class Case:
    """A compiled model and what `fit` takes with it."""

    model: Callable[[], keras.Model]
    arguments: Callable[[], Mapping[str, Any]]

    def compiled(self) -> keras.Model:
        """Returns the model as a new process would make it."""
        keras.utils.clear_session()
        keras.utils.set_random_seed(3)
        model = self.model()
        model.jit_compile = False
        return model


def _of_program(name: str) -> Case:
    program = PROGRAMS[name]

    def arguments() -> Mapping[str, Any]:
        arrays = program.arrays(1)
        if isinstance(arrays, keras.utils.PyDataset):
            data: dict[str, Any] = {"x": arrays, "epochs": 4}
        else:
            data = {"x": Data(name).train(), "steps_per_epoch": 10, "epochs": 2}
        if program.evaluates:
            data["validation_data"] = Data(name).validation()
        return {**data, "shuffle": False, **program.fit}

    return Case(program.model, arguments)


CASES = {
    **{name: _of_program(name) for name in PROGRAMS},
    **{name: Case(made.model, made.fit_arguments) for name, made in CONSTRUCTS.items()},
}


# A resumed run begins the random numbers of this layer again, and a run says so.
BEGINS_AGAIN = "a layer with a seed in a map"


def cases(*fast: str, without: str = "") -> pytest.MarkDecorator:
    """Runs a test for each case; `make test` only for the `fast`, as all take minutes."""
    soak = pytest.mark.soak
    names = [
        name if name in fast else pytest.param(name, marks=soak)
        for name in CASES
        if name != without
    ]
    return pytest.mark.parametrize("name", names)


def _values(model: keras.Model) -> list[NDArray[Any]]:
    state = model.optimizer.variables if model.optimizer is not None else []
    return [np.asarray(variable) for variable in [*model.weights, *state]]


def _fit(model: keras.Model, folder: Path, verbose: int = 0, **arguments: Any) -> runner.Result:
    overrides = {"run_dir": str(folder / "runs"), "tracking.uri": None}
    overrides |= arguments.pop("overrides", {})
    return runner.fit(model, **arguments, name="case", verbose=verbose, overrides=overrides)


def _same_weights(one: keras.Model, other: keras.Model) -> None:
    for index, (value, expected) in enumerate(zip(_values(one), _values(other), strict=True)):
        np.testing.assert_array_equal(value, expected, str(index))


@cases(
    "mask by !=",
    "SwapEMAWeights",
    "best weights restored",
    "a shuffled dataset",
    "own_test_step",
    "nested dictionaries, some without a loss",
)
@pytest.mark.filterwarnings("ignore")  # Of `fit` itself, on data that end and shuffle.
def test_a_model_ends_with_the_weights_and_the_history_of_fit(name: str, tmp_path: Path) -> None:
    _compare(CASES[name], tmp_path)


def test_a_data_loader_of_pytorch_trains_as_in_fit(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is none of the tests' packages")

    def loader() -> Any:
        pairs = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
        return torch.utils.data.DataLoader(pairs, batch_size=7)

    arguments = {"epochs": 2, "shuffle": False}
    _compare(
        Case(small, lambda: {"x": loader(), "validation_data": loader(), **arguments}), tmp_path
    )


def test_data_that_use_a_variable_of_another_device_train_as_in_fit(tmp_path: Path) -> None:
    """In a process of two logical CPUs, also shuffled and resumed."""
    command = [sys.executable, "-m", "tests.samples.other_device", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("masked", ["by the loss", "by sample weights"])
def test_a_masked_loss_on_two_devices_trains_as_on_one(masked: str, tmp_path: Path) -> None:
    by_loss = masked == "by the loss"
    weights = {} if by_loss else {"sample_weight": (Y[:, 0] > 0).astype("float32")}
    loss = masked_per_example if by_loss else "mse"
    trained = []
    for devices in (["cpu:0"], ["cpu:0", "cpu:1"]):
        model = Case(lambda: small(layers.Dense(4), loss=loss), dict).compiled()
        arguments = {**ARRAYS, **weights, "epochs": 2, "overrides": {"devices": devices}}
        _fit(model, tmp_path / str(len(devices)), **arguments)
        trained.append(model.get_weights())
    for one, two in zip(*trained, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)


def masked_per_example(truth: Any, predicted: Any) -> Any:
    return ops.sum(ops.cast(truth > 0, "float32") * (truth - predicted) ** 2, axis=-1)


class Read(keras.utils.PyDataset):
    """Reads batches, which cannot be read once a run has a checkpoint, until they are repaired."""

    run: Path | None = None

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return self.read(np.asarray(index)), Y[8 * index :][:8]

    @classmethod
    def read(cls, index: NDArray[Any]) -> NDArray[Any]:
        if cls.run is not None and any(cls.run.rglob("*.index")):
            raise KeyError("no such picture")
        features: NDArray[Any] = X[8 * int(index) :][:8]
        return features


def _read_in_a_map() -> tf.data.Dataset:
    def read(index: tf.Tensor) -> Any:
        features = tf.numpy_function(Read.read, [index], tf.float32, stateful=False)
        return tf.ensure_shape(features, [8, 10]), tf.gather(
            Y, index * 8 + tf.range(8, dtype=tf.int64)
        )

    return tf.data.Dataset.range(5).map(read)


@pytest.mark.parametrize("data", [Read, _read_in_a_map])
def test_a_run_whose_data_raised_an_error_resumes_once_they_are_repaired(
    data: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow reads ahead, so that the last checkpoint may hold the error."""
    case, arguments = Case(small, dict), {"epochs": 8, "shuffle": False}
    whole, model = case.compiled(), case.compiled()
    _fit(whole, tmp_path / "whole", x=data(), **arguments)
    broken = tmp_path / "broken"
    with monkeypatch.context() as patched:
        patched.setattr(Read, "run", broken)
        with pytest.raises(
            UserCodeError, match=r"data.train\(\) raised KeyError: 'no such picture'"
        ):
            _fit(model, broken, x=data(), **arguments)
    assert _fit(model, broken, x=data(), **arguments).plan is None
    _same_weights(model, whole)


def test_an_error_while_batches_are_counted_is_the_users(tmp_path: Path) -> None:
    def batches() -> Any:
        yield X[:8], Y[:8]
        yield X[:8], Y[:8]
        raise KeyError("no such picture")

    with pytest.raises(UserCodeError, match="raised KeyError: 'no such picture'") as raised:
        _fit(Case(small, dict).compiled(), tmp_path, x=batches)
    assert "in batches" in raised.value.details
    assert not (tmp_path / "runs").exists()


def test_a_generator_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    few = ((X[:8], Y[:8]) for _ in range(2))
    with pytest.raises(UserCodeError, match=r"it gave 2 already\n  cause: .*\n  remedy: "):
        _fit(Case(small, dict).compiled(), tmp_path, x=few, steps_per_epoch=2, epochs=2)


def test_a_session_that_is_lost_before_the_first_checkpoint_begins_again(tmp_path: Path) -> None:
    """The model holds no large values while a session has them, see `ModelValues.free`."""
    case = Case(lambda: small(layers.Dense(200)), lambda: {**ARRAYS, "epochs": 1})
    model, whole = case.compiled(), case.compiled()
    _fit(whole, tmp_path / "whole", **case.arguments())
    hook = disturbed("AbortOnce", step=3, marker=str(tmp_path / "sent"))["disturb"]
    _fit(model, tmp_path, **case.arguments(), overrides={"+hooks.disturb": hook})
    _same_weights(model, whole)


def _compare(case: Case, tmp_path: Path) -> None:
    fitted = case.compiled()
    history = fitted.fit(**case.arguments(), verbose=0).history
    model = case.compiled()
    result = _fit(model, tmp_path, **case.arguments())
    _same_weights(model, fitted)
    recorded = result.history
    assert model.history.history == recorded
    assert model.history.epoch == result.epoch == fitted.history.epoch
    assert model.stop_training == fitted.stop_training
    assert list(recorded) == list(history)
    for metric in history:
        if metric.startswith("val_"):
            # TensorFlow chooses the order of a metric's sums, again in each session.
            assert recorded[metric] == pytest.approx(history[metric], rel=1e-6, nan_ok=True)
        else:
            assert recorded[metric] == history[metric], metric


class Calls(keras.callbacks.Callback):
    """Notes every call, and what the logs hold."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Any] = []

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if not name.startswith("on_") or "predict" in name:
            return method
        return partial(self._note, name)

    def _note(self, name: str, *places: Any, **named: Any) -> None:
        values = [
            [*value] if isinstance(value, Mapping) else value
            for value in (*places, *named.values())
        ]
        self.noted.append((name, values, [*named]))


def test_callbacks_are_called_as_by_fit(tmp_path: Path) -> None:
    arguments = {**ARRAYS, "validation_data": (X[:20], Y[:20]), "epochs": 2}
    case, of_fit, of_run = Case(small, dict), Calls(), Calls()
    case.compiled().fit(**arguments, callbacks=[of_fit], verbose=0)
    _fit(case.compiled(), tmp_path, **arguments, callbacks=[of_run])
    assert of_run.noted == of_fit.noted


def test_a_run_says_which_random_numbers_begin_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[BEGINS_AGAIN]
    with tf.device("/cpu:0"):  # Data with a seed on a GPU are read again.
        arguments = case.arguments()
    _fit(case.compiled(), tmp_path, verbose=1, **arguments)
    printed = " ".join(capsys.readouterr().out.split())
    assert "sees other batches than one that was not interrupted: ReadVariableOp" in printed


@cases(
    "conditional_gan",
    "SwapEMAWeights by epoch",
    "steps_per_epoch of unknown length",
    without=BEGINS_AGAIN,
)
@pytest.mark.filterwarnings("ignore")  # Of Keras itself, also in `fit`.
def test_a_killed_run_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    whole = case.compiled()
    _fit(whole, tmp_path / "whole", **case.arguments())
    marker = str(tmp_path / "sent")
    hooks = disturbed("SignalOnce", step=4, number=int(signal.SIGINT), marker=marker)["disturb"]
    changes = {"+hooks.disturb": hooks}
    with pytest.raises(InterruptedRunError):
        _fit(case.compiled(), tmp_path, **case.arguments(), overrides=changes)
    model = case.compiled()
    for variable in model.weights:  # A resumed run reads none of them.
        if variable.dtype.startswith("float"):
            variable.assign(variable + 1)
    resumed = _fit(model, tmp_path, **case.arguments(), overrides=changes)
    assert resumed.plan is None
    _same_weights(model, whole)
