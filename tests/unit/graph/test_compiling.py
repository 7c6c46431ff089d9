"""How a model is compiled: an evaluation gives the numbers of `keras.Model.evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from runner.config.instantiation import build_target
from runner.config.schema import RunConfig
from runner.errors import ConfigError
from runner.graph.built_graph import BuiltGraph
from runner.graph.compiling import compile_model
from runner.graph.splits import class_weights
from runner.planning.model_variables import keras_variables
from tests.samples.graphs import build, opened, training_of
from tests.samples.objectives import Weighted
from tests.support.configs import tiny

HERE = "tests.samples.objectives"
DATA: dict[str, Any] = {"_target_": f"{HERE}.Weighted"}
PARTS = {**DATA, "parts": True}
SCORED = {"_target_": f"{HERE}.scored"}
TWO = {"data": PARTS, "model": {"_target_": f"{HERE}.two_by_two"}}


def losses(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"keras.losses.{name}", **arguments}


def metrics(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"keras.metrics.{name}", **arguments}


@dataclass
class Trained:
    """The values at the end of a run of some steps.

    Attributes:
      config: its configuration.
      built: its graph.
      weights: the model's variables.
      batch: loss and metrics of the next batch of training.
      evaluated: those of the validation split.
    """

    config: RunConfig
    built: BuiltGraph
    weights: dict[str, Any]
    batch: dict[str, float]
    evaluated: dict[str, float]

    def by_keras(self, **compiled: Any) -> dict[str, float]:
        """Returns what `keras.Model.evaluate` gives for the same weights and data."""
        keras.utils.clear_session()  # Names of layers count from the start.
        model = build_target("model", self.config.model)
        batches = build_target("data", self.config.data).validation()
        model(next(iter(batches))[0])
        for name, variable in keras_variables(model).items():
            variable.assign(self.weights[name])
        if compiled:
            model.compile(**compiled)
        return dict(model.evaluate(batches, return_dict=True, verbose=0))


def trained(config: RunConfig, folder: Path | None = None) -> Trained:
    """Trains two steps, evaluates twice, and takes a third step."""
    with opened(config) as run:
        training = training_of(run.built)
        names = [spec.name for spec in run.built.specs if spec.trainable]
        before = run.values(*names)
        run.train(2)
        assert not any(map(np.array_equal, before, run.values(*names)))
        weights = {spec.name: run.values(spec.name)[0] for spec in run.built.specs}
        evaluated = run.evaluate()
        assert run.evaluate() == evaluated
        batch = run.run(dict(training.values))
        if folder is not None:
            run.save(folder)
    return Trained(config, run.built, weights, batch, evaluated)


def built(node: Any) -> Any:
    """The object that a node of the configuration stands for."""
    if isinstance(node, dict) and "_target_" not in node:
        return {name: built(value) for name, value in node.items()}
    return build_target("node", node) if isinstance(node, dict) else node


METRICS = {
    "auc": metrics("AUC"),
    "iou": metrics("BinaryIoU", dtype="float32"),
    "accuracy": "accuracy",
    "mean_absolute_error": "mean_absolute_error",
}


def test_metrics_are_those_of_keras_over_a_whole_pass_and_of_each_batch(tmp_path: Path) -> None:
    hinge = {"hinge": metrics("hinge", _partial_=True)}
    config = tiny(
        data=DATA,
        model=SCORED,
        loss="bce",
        metrics={**METRICS, **hinge},
        weighted_metrics={
            f"weighted_{name}": metric for name, metric in {**METRICS, **hinge}.items()
        },
    )
    run = trained(config, tmp_path)
    groups: dict[str, list[Any]] = {"metrics": [], "weighted_metrics": []}
    for objects in groups.values():
        for name, metric in METRICS.items():
            objects.append(built({**metric, "name": name} if isinstance(metric, dict) else metric))
        objects.append(keras.metrics.MeanMetricWrapper(keras.losses.hinge, name="hinge"))
    # Keras calls the second of a name `weighted_NAME`.
    assert run.evaluated == pytest.approx(run.by_keras(loss="bce", **groups))
    # A step's values are of its own batch.
    assert set(run.batch) == set(run.evaluated)
    assert run.batch["iou"] != run.evaluated["iou"]
    # The state is in no checkpoint, and no part of the plan.
    saved = tf.train.load_checkpoint(str(tmp_path / "model.ckpt")).get_variable_to_shape_map()
    assert set(saved) - {"iterator_state"} >= set(run.built.variables)
    assert not any(
        name in saved_name for name in METRICS for saved_name in (*saved, *run.built.variables)
    )


# Other names and classes are those of the outputs below.
@pytest.mark.parametrize(
    ("loss", "weights"),
    [
        ("crossentropy", False),
        (losses("MeanAbsoluteError", reduction="sum"), True),
        (losses("mean_squared_error", _partial_=True), True),
        ({"_target_": f"{HERE}.scalar", "_partial_": True}, False),
    ],
)
def test_losses_are_those_of_keras(loss: Any, weights: bool) -> None:
    run = trained(tiny(data={**DATA, "weights": weights}, model=SCORED, loss=loss, metrics={}))
    assert run.evaluated == pytest.approx(run.by_keras(loss=built(loss)))


def test_masks_of_padding_count_as_in_keras() -> None:
    compiled: dict[str, Any] = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
    config = tiny(
        data={"_target_": f"{HERE}.Words"},
        model={"_target_": f"{HERE}.tagged"},
        loss=compiled["loss"],
        metrics={"accuracy": "accuracy"},
    )
    run = trained(config)
    assert run.evaluated == pytest.approx(run.by_keras(**compiled))


@pytest.mark.parametrize(("named", "weights"), [(True, True), (False, False)])
def test_each_output_has_its_loss_its_weight_and_its_metrics(named: bool, weights: bool) -> None:
    loss = {"sign": "binary_crossentropy", "size": losses("Huber")}
    config = tiny(
        data={**PARTS, "weights": weights},
        model={"_target_": f"{HERE}.two_by_two", "named": named},
        loss=loss,
        loss_weights={"size": 0.25},
        metrics={"sign": {"auc": metrics("AUC"), "accuracy": "accuracy"}},
        weighted_metrics={"size": {"mse": metrics("mean_squared_error", _partial_=True)}},
    )
    run = trained(config)
    expected = run.by_keras(
        loss={name: built(value) for name, value in loss.items()},
        loss_weights={"sign": 1.0, "size": 0.25},
        metrics={"sign": [keras.metrics.AUC(name="auc"), "accuracy"]},
        weighted_metrics={"size": ["mse"]},
    )
    assert run.evaluated == pytest.approx(expected)
    assert len(run.evaluated) == 6


def test_a_compiled_model_says_its_own_unless_the_configuration_does() -> None:
    config = tiny(data=DATA, model={"_target_": f"{HERE}.compiled"}, loss=None, metrics={})
    config.train.accumulate = 2
    run = trained(config)
    assert run.evaluated == pytest.approx(run.by_keras())
    layers = [f"{layer}/{part}" for layer in ("dense", "dense_1") for part in ("kernel", "bias")]
    assert set(run.built.variables) == {
        *(f"{name}{slot}" for name in layers for slot in ("", "/Adam", "/Adam_1")),
        *("global_step", "beta1_power", "beta2_power", "Adam/iterations"),
    }
    assert [note.split(":")[0] for note in run.built.notes] == ["optimizer"]
    config.loss, config.metrics = "mae", {"auc": metrics("AUC")}
    config.model["steps_per_execution"] = 4
    again = build(config)
    assert set(again.evaluation.metrics) == {"loss", "auc"}
    notes = [note.split(":")[0] for note in again.notes]
    assert notes == ["loss", "metrics", "optimizer", "steps_per_execution"]


def test_a_loss_that_a_model_computes_itself_is_honoured() -> None:
    model = {"_target_": f"{HERE}.OwnLoss"}
    run = trained(tiny(data={**DATA, "weights": False}, model=model, loss=None, metrics={}))
    for values in (run.batch, run.evaluated):
        assert values["loss"] > values["tracker"], "add_loss counts"
    expected = run.by_keras(loss=None)
    for name in ("tracker", "seen"):
        assert run.evaluated[name] == pytest.approx(expected[name])
    *_, (features, _) = Weighted(weights=False).train().take(3)
    assert run.batch["seen"] == pytest.approx(features.numpy().mean()), "the call's, of its batch"


def test_layers_that_are_not_trainable_do_not_train() -> None:
    model = {"_target_": f"{HERE}.half_frozen"}
    with opened(tiny(data=DATA, model=model, loss="mse", metrics={})) as run:
        names = [f"base/{name}" for name in ("dense/kernel", "norm/gamma", "norm/moving_mean")]
        before = run.values("head/kernel", *names)
        run.train(2)
        moved, *same = map(np.array_equal, before, run.values("head/kernel", *names))
        assert (moved, *same) == (False, True, True, True)
        trained = [spec.name for spec in run.built.specs if spec.trainable]
        assert trained == ["head/kernel", "head/bias"]


def test_class_weights_weigh_examples_by_their_class() -> None:
    weights = {0: 2.0, 2: 0.5}
    ones = [2.0, 1.0, 0.5, 1.0]
    for labels in ([0, 1, 2, 3], [[0], [1], [2], [3]], np.eye(4), [0.0, 1.0, 2.0, 3.0]):
        assert class_weights(tf.constant(labels), weights).numpy().tolist() == ones
    config = tiny(
        data={**DATA, "weights": False},
        model={"_target_": f"{HERE}.compiled"},
        loss=losses("mean_squared_error", _partial_=True),
        metrics={"unweighted": "mse"},
        class_weight={0: 3.0, 1: 3.0},
    )
    with opened(config) as run:
        penalty = 0.1 * np.square(run.values("dense/kernel")[0]).sum()
        batch = run.run(dict(training_of(run.built).values))
    assert batch["loss"] - penalty == pytest.approx(3 * batch["unweighted"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "crossentropi"}, r"loss is 'crossentropi'(.|\n)*choices: crossentropy"),
        ({"metrics": {"a": "acuracy"}}, r"metrics\.a is 'acuracy'(.|\n)*choices: accuracy"),
        ({"metrics": {"a": "mean_io_u"}}, r"metrics\.a is 'mean_io_u'"),
        ({"loss": losses("Huber", _partial_=True)}, "Huber is a class, and `_partial_` is true"),
        ({"loss": metrics("AUC")}, "loss: AUC is a metric"),
        ({"loss": losses("Huber", reduction=None)}, "its reduction leaves a value for each"),
        ({"metrics": {"f1": metrics("F1Score")}}, r"f1 has the shape \(1,\)"),
        ({"metrics": {"loss": "mae"}}, "two metrics are named loss"),
        ({"loss": {"sing": "mse"}}, r"loss\.sing: the model has no output 'sing'(.|\n)*dense_1"),
        ({"loss": None}, "loss has no value"),
        (
            {"loss": None, "model": {"_target_": f"{HERE}.OwnStep"}},
            "has a make_train_function",
        ),
        ({"class_weight": {0: 2.0}}, "the training data give sample weights"),
        ({"loss_weights": {"a": 2.0}}, "a weighs no loss(.|\n)*write loss as a mapping"),
        ({"loss": {"dense_1": "mse"}, "loss_weights": {"dens": 2.0}}, "choices: dense"),
        ({"metrics": {"sing": {"a": "mae"}}}, r"metrics\.sing: the model has no output 'sing'"),
        ({**TWO, "metrics": {"a": "mae"}}, r"metrics of no output(.|\n)*metrics\.OUTPUT\.NAME"),
        ({"loss": ["mse", "mse"]}, "loss lists 2 losses, and the model names 1 outputs"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    config = tiny(**{"data": DATA, "model": SCORED, "loss": "mse", "metrics": {}, **changes})
    with pytest.raises(ConfigError, match=message):
        build(config)


CROSSENTROPY = "categorical_crossentropy"


@pytest.mark.parametrize(
    ("loss", "activation", "functional", "noted"),
    [
        (CROSSENTROPY, None, True, True),
        (CROSSENTROPY, None, False, True),
        ("BinaryCrossentropy", "linear", True, True),
        ({"digit": CROSSENTROPY}, None, True, True),
        ({"digit": "mse"}, None, True, False),
        (CROSSENTROPY, "softmax", True, False),
        (CROSSENTROPY, "softmax", False, False),
        ("mse", None, True, False),
        (losses("CategoricalCrossentropy", from_logits=True), None, True, False),
    ],
)
def test_a_loss_of_probabilities_on_logits_is_noted(
    loss: Any, activation: str | None, functional: bool, noted: bool
) -> None:
    digit = keras.layers.Dense(2, activation=activation, name="digit")
    image = keras.Input((3,))
    model = keras.Model(image, digit(image)) if functional else keras.Sequential([image, digit])
    step = tf.Variable(0, dtype=tf.int64)
    notes = compile_model(tiny(loss=loss, metrics={}), model, step)
    assert ["takes probabilities, and digit" in note for note in notes] == [True] * noted
