"""`runner.fit`: the numbers of `keras.Model.fit`, in a run that resumes and grows into a file."""

from __future__ import annotations

import functools
import itertools
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray
from omegaconf import OmegaConf

import runner
from runner.api.fit import experiment_of
from runner.config.composition import compose_command, without_hydra
from runner.errors import (
    ConfigError,
    InterruptedRunError,
    NonFiniteLossError,
    PlanError,
    SaveError,
    UserCodeError,
)
from runner.graph.plain_config import model_digest, model_name
from runner.inputs import FitData
from runner.inputs.data_digest import digest
from runner.tracking.journal import Parameters, read_lines, segments
from runner.tracking.tracking_directory import TrackingDirectory
from tests.conformance.goldens import save_npz
from tests.keras_io.generative import wgan_gp
from tests.keras_io.parts import points
from tests.support.runs import disturbed

_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(50, 4))
Y = (X[:, 0] > 0).astype("int32")
OFF = {"tracking.uri": None}


def net(units: int = 3) -> keras.Model:
    body = keras.layers.Dense(units, activation="tanh", name="body")
    layers = [keras.Input((4,)), body, keras.layers.Dense(2, name="head")]
    model = keras.Sequential(layers, name="net")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def distributed() -> keras.Model:
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        return net()


def arrays() -> tuple[NDArray[Any], NDArray[Any]]:
    return X, Y


def batches(start: int = 0) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    for first in range(10 * start, 50, 10):
        yield X[first : first + 10].astype("float32"), Y[first : first + 10]


class Sequence(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return X[10 * index : 10 * index + 10], Y[10 * index : 10 * index + 10]


def dataset() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X.astype("float32"), Y)).batch(10)


BIG = np.zeros((2**22, 1))  # 64 MiB for features and labels.


def within_another() -> tf.data.Dataset:
    others = iter(dataset())
    return dataset().map(lambda x, y: (x + next(others)[0], y))


KINDS: dict[str, dict[str, Any]] = {
    "arrays": {"x": X, "y": Y, "batch_size": 10},
    "function": {"x": arrays, "batch_size": 10},
    "dataset": {"x": dataset()},
    "function of a dataset": {"x": dataset},
    "generators": {"x": batches, "steps_per_epoch": 5},
    "PyDataset": {"x": Sequence()},
}


@pytest.fixture(scope="module")
def history() -> tuple[list[float], list[NDArray[Any]]]:
    keras.utils.set_random_seed(1)
    model = net()
    fitted = model.fit(
        X, Y, batch_size=10, epochs=2, shuffle=False, validation_data=(X, Y), verbose=0
    )
    return fitted.history["val_loss"], model.get_weights()


def fit(folder: Path, **arguments: Any) -> runner.Result:
    settings = {"run_dir": str(folder / "runs"), **OFF, **arguments.pop("overrides", {})}
    return runner.fit(**{"model": net, "seed": 1, **arguments, "overrides": settings})


# What an experiment, or the class of a callback, may be called.
NAMES = (
    "Nan",
    "null",
    "Größe",
    "a b",
    "a%41",
    "a#?",
    "[1]*",
    "it's",
    "a=b",
    "-a",
    "1.10",
    "x" * 200,
)


def test_names_are_free(tmp_path: Path) -> None:
    class Counting(keras.callbacks.Callback):
        def on_train_end(self, logs: Any = None) -> None:
            ended.append(type(self).__name__)

    ended: list[str] = []
    callbacks = [type(name, (Counting,), {})() for name in NAMES]
    result = fit(tmp_path, **KINDS["arrays"], name=NAMES[0], callbacks=callbacks)
    assert result.config.name == NAMES[0]
    assert ended == list(NAMES)
    for name in NAMES[1:]:
        with experiment_of(net, **KINDS["arrays"], name=name, callbacks=callbacks) as (stored, *_):
            config = without_hydra(compose_command([f"+experiment={stored}"]))
        assert runner.validate(config).name == name


def test_a_function_of_no_module_is_named_where_it_fails(tmp_path: Path) -> None:
    def misbuilt() -> keras.Model:
        raise ValueError("no such layer")

    with pytest.raises(ConfigError, match=r"^model: misbuilt fails\n  cause: ValueError: no such"):
        fit(tmp_path, **KINDS["arrays"], model=misbuilt)


def _some(*names: str) -> list[Any]:
    """The kinds of data: some always, the others in long tests."""
    soak = pytest.mark.soak
    return [kind if kind in names else pytest.param(kind, marks=soak) for kind in KINDS]


@pytest.mark.parametrize("kind", _some("arrays", "dataset"))
def test_every_kind_of_data_gives_the_numbers_of_fit(
    kind: str, history: tuple[list[float], list[NDArray[Any]]], tmp_path: Path
) -> None:
    validation = {"validation_data": (X, Y)}
    result = fit(tmp_path, **KINDS[kind], **validation, epochs=2, shuffle=False)
    losses, weights = history
    assert result.metrics["validation/loss"].dropna().tolist() == pytest.approx(losses, rel=1e-6)
    for one, other in zip(result.model("latest").get_weights(), weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("kind", _some("PyDataset"))
def test_an_interrupted_fit_continues_with_the_next_batch(kind: str, tmp_path: Path) -> None:
    # The function of another call is another object, and data of another order would show.
    data = {**KINDS[kind]}
    if kind == "dataset":
        data["x"] = dataset().shuffle(5, seed=2)
    whole = fit(tmp_path / "whole", **data, epochs=3)
    marker = str(tmp_path / "sent")
    hooks = disturbed("SignalOnce", step=7, number=int(signal.SIGINT), marker=marker)["disturb"]
    changes = {"+hooks.disturb": hooks}
    with pytest.raises(InterruptedRunError):
        fit(tmp_path, **data, epochs=3, overrides=changes)
    resumed = fit(tmp_path, **data, epochs=3, overrides=changes)
    assert resumed.plan is None
    for one, other in zip(resumed.model().weights, whole.model().weights, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("rate", "scaffolds", "error"),
    [
        (1e30, {}, NonFiniteLossError),
        (0.1, {"none": {"variables": {"include": ["nothing/*"]}}}, PlanError),
    ],
)
def test_a_model_is_as_usable_after_an_error_as_after_fit(
    rate: float, scaffolds: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    hidden = keras.layers.Dense(600, name="hidden")
    model = keras.Sequential([keras.Input(X.shape[1:]), hidden, keras.layers.Dense(1, name="out")])
    model.compile(keras.optimizers.SGD(rate, momentum=0.5), "mse")
    with pytest.raises(error):
        fit(tmp_path, model=model, x=X, y=Y, scaffolds=scaffolds)
    assert [value.shape for value in model.get_weights()] == [one.shape for one in model.weights]
    model.fit(X, Y, verbose=0)


def test_a_model_has_its_values_where_the_disk_has_no_room_for_them(small_disk: Path) -> None:
    hidden = [keras.layers.Dense(700, name=name) for name in ("small", "large")]
    model = keras.Sequential([keras.Input(X.shape[1:]), *hidden, keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    before = model.get_weights()
    with pytest.raises(SaveError, match="cannot be written\n  cause: No space left"):
        fit(small_disk, model=model, x=X, y=Y)
    for value, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_a_file_holds_the_experiment_that_the_command_line_takes(tmp_path: Path) -> None:
    build = functools.partial(net, units=2)
    result = fit(tmp_path, model=build, x=arrays, epochs=2, validation_split=0.2)
    assert result.directory is not None
    file = result.directory / "experiment.yaml"
    head = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert len(head) == 3  # Nothing is of this process alone.
    content = OmegaConf.load(file)
    assert content.model == {"_target_": f"{__name__}.net", "units": 2}
    assert content.data.x == {"_target_": f"{__name__}.arrays", "_partial_": True}
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    shutil.copy(file, tmp_path / "conf" / "experiment" / "net.yaml")
    overrides = {"run_dir": str(tmp_path / "again"), **OFF}
    again = runner.run("net", overrides, config_dir=tmp_path / "conf")
    assert again.metrics.equals(result.metrics)


def test_the_model_is_found_by_names_that_keras_counts(tmp_path: Path) -> None:
    def counted() -> keras.Model:
        layers = [keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.5)]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    result = fit(tmp_path, model=counted, x=X, y=Y.astype("float32"))
    names = [keras.layers.Dense(1).name]
    one, other = result.model(), result.model()
    names.append(keras.layers.Dense(1).name)
    assert all(map(np.array_equal, one.get_weights(), other.get_weights()))
    assert len({*names}) == 2


def test_what_the_model_is_compiled_with_is_recorded_where_the_configuration_is_silent(
    tmp_path: Path,
) -> None:
    def compiled() -> keras.Model:
        model = net()
        rate = keras.optimizers.schedules.CosineDecay(0.01, 20)
        model.compile(keras.optimizers.SGD(rate, momentum=0.9), model.loss, metrics=["accuracy"])
        return model

    for model in (compiled, compiled()):
        result = fit(tmp_path, model=model, x=X, y=Y, overrides={"+metrics": {"acc": "accuracy"}})
        assert result.directory is not None
        text = (result.directory / "config.yaml").read_text()
        assert OmegaConf.create(text).optimizer == {}
        comment = "".join(line[2:] for line in text.splitlines(True) if line.startswith("# "))
        recorded = OmegaConf.create(comment.partition("\n")[2])
        assert recorded.loss._target_ == "keras.losses.SparseCategoricalCrossentropy"
        assert "metrics" not in recorded
        (segment,) = segments(TrackingDirectory(result.directory).journal)
        records = [line.record for line in read_lines(segment.path)]
        (parameters,) = (item.values for item in records if isinstance(item, Parameters))
        expected = {
            "loss.from_logits": "True",
            "metrics.acc": "accuracy",
            "optimizer._target_": "keras.optimizers.SGD",
            "optimizer.momentum": "0.9",
            "optimizer.learning_rate._target_": "keras.optimizers.schedules.CosineDecay",
            "optimizer.learning_rate.initial_learning_rate": "0.01",
        }
        assert expected.items() <= parameters.items()


def test_what_another_process_cannot_import_is_named_in_the_file(tmp_path: Path) -> None:
    result = fit(tmp_path, model=lambda: net(2), x=X, y=Y, name="mine")
    assert result.directory is not None
    text = (result.directory / "experiment.yaml").read_text()
    assert "#   model: a lambda that no module has" in text
    assert "data.x: ndarray in memory" in text
    assert len(result.model().weights) == 4
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"repeat that call with overrides="):
        runner.run("mine", OFF, config_dir=tmp_path)


def test_scaffolds_weights_and_plans_are_those_of_a_run(tmp_path: Path) -> None:
    body: dict[str, Any] = {"body/kernel": np.ones((4, 3)), "body/bias": np.ones(3)}
    np.savez(tmp_path / "body.npz", **body)
    scaffolds = {
        "body": {"checkpoint": str(tmp_path / "body.npz"), "variables": {"include": ["body/*"]}}
    }
    plan = fit(tmp_path, x=X, y=Y, scaffolds=scaffolds, overrides={"mode": "plan"}).plan
    assert plan is not None
    assert "2 of 4 model variables" in str(plan)
    by_class = fit(tmp_path, x=X, y=Y, class_weight={0: 1.0, 1: 3.0}, shuffle=False)
    weighted = fit(tmp_path, x=X, y=Y, sample_weight=1.0 + 2 * Y, shuffle=False)
    for one, other in zip(by_class.model().weights, weighted.model().weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    scaffolds["body"]["variables"] = {"include": ["nobody/*"]}
    with pytest.raises(PlanError):
        fit(tmp_path, x=X, y=Y, scaffolds=scaffolds)


def test_callbacks_see_the_training(tmp_path: Path) -> None:
    class Rates(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            losses.append(logs["val_loss"])
            logs["rows"] = [[1], [2, 3]]  # No number, and no array either.
            self.model.optimizer.learning_rate = 0.01 / (epoch + 2)

    losses: list[float] = []
    data = {"x": X, "y": Y, "validation_data": (X, Y), "batch_size": 10, "epochs": 3}
    result = fit(tmp_path, **data, callbacks=[Rates()], shuffle=False)
    keras.utils.set_random_seed(1)
    model, seen = net(), [*losses]
    losses.clear()
    model.fit(**data, callbacks=[Rates()], shuffle=False, verbose=0)
    assert seen == pytest.approx(losses, rel=1e-6)
    rate = result.model("latest").optimizer.learning_rate
    assert float(rate) == pytest.approx(float(model.optimizer.learning_rate))
    assert result.directory is not None
    text = (result.directory / "experiment.yaml").read_text()
    assert "callbacks.Rates: in memory; name its class" in text


def test_a_callback_list_is_its_callbacks_without_the_bar_that_fit_adds(tmp_path: Path) -> None:
    seen: list[int] = []
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
    model = net()
    listed = keras.callbacks.CallbackList([note], add_history=True, add_progbar=True, model=model)
    result = fit(tmp_path, model=model, x=X, y=Y, epochs=2, callbacks=listed)
    assert seen == [0, 1]
    assert [*result.config.callbacks] == ["LambdaCallback", "History"]
    assert listed._history.history == result.history


def test_functions_of_callbacks_see_the_weights_of_the_epoch(tmp_path: Path) -> None:
    """They reach the model as a variable of the program that defines them."""
    models = [net(), net()]
    seen: tuple[list[Any], list[Any]] = ([], [])
    models[1].set_weights(models[0].get_weights())

    def callbacks(index: int) -> list[keras.callbacks.Callback]:
        def note(epoch: int, *logs: Any) -> float:
            seen[index].append([weight.sum() for weight in models[index].get_weights()])
            return 0.1 / (epoch + 1)

        return [
            keras.callbacks.LambdaCallback(on_epoch_end=note),
            keras.callbacks.LearningRateScheduler(note),
        ]

    data: dict[str, Any] = {"x": X, "y": Y, "epochs": 3, "shuffle": False}
    models[0].fit(**data, callbacks=callbacks(0), verbose=0)
    fit(tmp_path, model=models[1], callbacks=callbacks(1), **data)
    assert len(seen[0]) == 6
    np.testing.assert_allclose(seen[1], seen[0], rtol=1e-5)


def test_a_validation_split_of_zero_leaves_nothing_to_validate(tmp_path: Path) -> None:
    history = fit(tmp_path, x=X, y=Y, validation_split=0.0).history
    assert "loss" in history
    assert "val_loss" not in history


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": keras.layers.Dense(2), "x": X}, "model is a Dense"),
        ({"x": ([X[:4], Y[:4]] for _ in range(4)), "steps_per_epoch": 2}, "gives lists"),
        ({"x": X, "y": Y, "validation_data": dataset().take(0)}, "gives no example to evaluate"),
        ({"x": X, "y": Y, "validation_data": dataset().repeat()}, "repeats forever"),
        ({"model": distributed(), "x": X, "y": Y}, "it is distributed by a MirroredStrategy"),
        ({"x": X, "y": Y[1:]}, "the arrays have 49, 50 examples"),
        ({"x": 3}, "int is no data"),
        ({"x": dataset(), "validation_split": 0.1}, "validation_split is set, and x is batches"),
        ({"x": dataset(), "y": Y}, r"y is set, and x is a tf\.data\.Dataset"),
        ({"x": Sequence(), "sample_weight": Y}, "sample_weight is set, and x is a Sequence"),
        ({"x": batches(), "class_weight": {0: 2.0}}, "class_weight is set beside a generator"),
        ({"x": X, "y": Y, "class_weight": {0: 2.0}, "sample_weight": Y}, "beside sample_weight"),
        ({"x": itertools.repeat((BIG, BIG))}, r"gave 1\d batches.*\n.*\n.*steps_per_epoch"),
        ({"x": X, "y": Y, "epochs": 2, "initial_epoch": 2}, "initial_epoch is 2"),
        ({"x": within_another()}, "uses an object made outside of it, Iterator"),
        ({"model": keras.Sequential([keras.layers.Dense(2)]), "x": X}, "is not compiled"),
        ({"x": X, "y": Y, "scaffolds": {"a": {"chekpoint": "b"}}}, "chekpoint"),
        ({"x": X, "y": Y, "epochs": None}, "epochs is None"),
        ({"x": X, "y": Y, "batch_size": 0}, "batch_size is 0"),
        ({"x": X, "y": Y, "validation_split": 1.0}, "validation_split is 1.0"),
        ({"x": X, "y": Y, "validation_freq": [0]}, r"validation_freq is \[0\]"),
        ({"x": X, "y": Y, "validation_data": (X, Y, Y, Y)}, "validation_data has 4 parts"),
        ({"x": X, "y": Y, "class_weight": [1.0, 2.0]}, r"class_weight is \[1.0, 2.0\]"),
        ({"x": X, "y": Y, "class_weight": np.ones(2)}, r"class_weight is array\(\[1., 1.\]\)"),
        ({"x": X, "y": Y, "callbacks": [keras.callbacks.History]}, "a callback is the class Hist"),
        ({"x": X, "y": Y, "scaffolds": 5}, "scaffolds is 5"),
        ({"x": []}, "the data are empty"),
        *(
            (
                {
                    "model": model,
                    "x": X,
                    "y": Y,
                    "overrides": {"optimizer.learning_rate": 0.1, **mode},
                },
                "optimizer.learning_rate is set, and the model has an optimizer of its own",
            )
            for model in (net(), net)
            for mode in ({}, {"mode": "plan"})
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_are_named_before_anything_is_created(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["generator", "PyDataset", "function of a map"])
def test_data_that_cannot_be_read_are_named_before_anything_is_created(
    kind: str, tmp_path: Path
) -> None:
    def failing(*ignored: Any) -> Any:
        raise OSError("the disk is gone")

    class Failing(Sequence):
        __getitem__ = failing

    def generator() -> Iterator[Any]:
        yield failing()

    def mapped(x: Any, y: Any) -> Any:
        return tf.numpy_function(failing, [x], tf.float32), y

    data: dict[str, Callable[[], Any]] = {
        "generator": generator,
        "PyDataset": Failing,
        "function of a map": lambda: dataset().map(mapped),
    }
    with pytest.raises(UserCodeError, match=r"^data raised (UnknownError: )?OSError: the disk"):
        fit(tmp_path, x=data[kind]())
    assert list(tmp_path.iterdir()) == []


def test_nested_features_and_strings(tmp_path: Path) -> None:
    names = np.array(["a", "b", "a", "c"])
    data = FitData({"name": names, "pair": [X[:4], Y[:4]]}, Y[:4], batch_size=3)
    features, labels = data.train().element_spec
    assert (features["name"].dtype, labels.dtype) == (tf.string, tf.int32)
    assert [spec.dtype for spec in features["pair"]] == [tf.float32, tf.int32]
    assert data.sizes() == {"train": 4, "validation": 4, "test": 4}
    assert data.steps() == 2
    first = next(iter(data.validation()))
    assert first[0]["name"].numpy().tolist() == [b"a", b"b", b"a"]


def test_each_pass_has_every_example_once_in_another_order() -> None:
    data = FitData(np.arange(50), batch_size=8, seed=4)
    assert int(data.train().cardinality()) == data.steps() == 7
    passes = [
        np.concatenate([*dataset.as_numpy_iterator()]).tolist()
        for dataset in (data.train(), data.train().repeat(2).skip(7), data.train())
    ]
    assert passes[0] == passes[2]
    assert passes[0] != passes[1]
    for order in passes:
        assert order != sorted(order) == [*range(50)]


@pytest.mark.parametrize("pair", [(X[:4], X[1:5]), [X[:4], X[1:5]]])
def test_several_features_without_labels_are_no_labels(pair: Any) -> None:
    (features,) = next(iter(FitData(pair, batch_size=3, shuffle=False).train()))
    np.testing.assert_allclose(features[1], X[1:4], rtol=1e-6)


@pytest.mark.soak
def test_a_generator_of_noise_is_a_model(tmp_path: Path) -> None:
    result = fit(tmp_path, model=wgan_gp, x=points(0))
    assert result.model("latest")(np.zeros((3, 2))).shape == (3, 4)


def test_the_digest_of_data_depends_on_their_values() -> None:
    assert digest(X) == digest(X.copy()) != digest(X + 1)
    assert digest((X, Y)) != digest((Y, X))
    assert digest({"a": X}) != digest({"b": X})


def files(folder: Path, content: str) -> tf.data.Dataset:
    (folder / "lines.txt").write_text(content)
    return tf.data.TextLineDataset([str(folder / "lines.txt")]).batch(2)


class Other(Sequence):
    def __getitem__(self, index: int) -> Any:
        return X[10 * index : 10 * index + 10] + 1, Y[10 * index : 10 * index + 10]


class Longer(Sequence):
    def __len__(self) -> int:
        return 4


def test_data_sets_are_told_apart_by_length_contents_and_files(tmp_path: Path) -> None:
    shuffled = [dataset().unbatch().shuffle(50).batch(10) for _ in range(2)]
    assert digest(shuffled[0]) == digest(shuffled[1])  # Its first batch is another each time.
    generated = [
        tf.data.Dataset.from_generator(lambda at=at: iter([at]), output_signature=tf.TensorSpec([]))
        for at in (1.0, 2.0)
    ]
    one, other = files(tmp_path, "a\nb"), tmp_path / "other"
    other.mkdir()
    longer = digest(files(tmp_path, "a\nb\nc\nd"))
    digests = [
        digest(dataset()),
        digest(dataset().take(3)),
        digest(dataset().map(lambda x, y: (x + 1, y))),
        digest(shuffled[0]),
        digest(dataset().unbatch().map(lambda x, y: (x * 2, y)).shuffle(50).take(40).batch(10)),
        *map(digest, generated),
        digest(one),
        digest(Sequence()),
        digest(Other()),
        digest(Longer()),
    ]
    assert digest(dataset()) == digests[0]
    assert digest(Sequence()) == digest(Sequence())
    assert len({*digests}) == len(digests)
    assert longer == digest(one)  # The same file, as it is now.
    assert longer != digest(files(tmp_path, "a\nb\nc"))


def test_a_model_is_told_apart_by_architecture_and_compilation() -> None:
    def made(units: int = 3, rate: float = 0.01, loss: str = "mse") -> keras.Model:
        keras.utils.clear_session()
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
        model.compile(keras.optimizers.Adam(rate), loss, metrics=["mae"])
        return model

    assert model_digest(made()) == model_digest(made())
    others = [made(), made(units=4), made(rate=0.1), made(loss="mae")]
    assert len({*map(model_digest, others)}) == 4
    assert model_name(keras.Sequential(name="sequential_3")) == "sequential"
    assert model_name(keras.Sequential(name="net_3")) == "net_3"


def test_a_model_starts_from_its_weights_unless_a_checkpoint_decides(tmp_path: Path) -> None:
    save_npz(tmp_path / "body.npz", **{"body/kernel": np.ones((4, 3)), "body/bias": np.ones(3)})
    scaffolds = {
        "body": {"checkpoint": str(tmp_path / "body.npz"), "variables": {"include": ["body/*"]}}
    }
    model = net()
    model.set_weights([np.full(weight.shape, 2.0) for weight in model.weights])
    model.optimizer.learning_rate = 0.0
    result = fit(tmp_path, model=model, x=X, y=Y, scaffolds=scaffolds)
    assert [float(np.mean(weight)) for weight in model.weights] == [1.0, 1.0, 2.0, 2.0]
    assert result.model("latest") is model
    exported = {"mode": "export", "export.which": "scaffolds", "run_dir": str(result.directory)}
    fit(tmp_path, model=model, x=X, y=Y, scaffolds=scaffolds, overrides=exported)
    assert [float(np.mean(weight)) for weight in model.weights] == [1.0, 1.0, 2.0, 2.0]


def test_the_last_lines_say_which_weights_are_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = keras.callbacks.EarlyStopping("loss", mode="max", restore_best_weights=True)
    fit(tmp_path, model=net(), x=X, y=Y, callbacks=[stop], epochs=2)
    line = "weights: as callbacks.EarlyStopping left them at the end of training"
    assert line in capsys.readouterr().out
    model = net()
    model.compile(keras.optimizers.Adam(use_ema=True), "sparse_categorical_crossentropy")
    fit(tmp_path, model=model, x=X, y=Y)
    assert "weights: the optimizer's moving averages" in capsys.readouterr().out
    fit(tmp_path, model=net(), x=X, y=Y, verbose=0)
    assert capsys.readouterr().out == ""
