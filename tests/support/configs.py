"""Configurations of the tiny experiment without Hydra."""

from __future__ import annotations

from typing import Any

from runner.config.schema import RunConfig, TrackingConfig, TrainConfig


def tiny(**changes: Any) -> RunConfig:
    """Returns the validated configuration of a tiny experiment, with some fields changed."""
    fields: dict[str, Any] = {
        "name": "tiny",
        "data": {"_target_": "tests.samples.experiment.Blobs", "batch_size": 8, "seed": 0},
        "model": {"_target_": "tests.samples.experiment.Net"},
        "loss": {
            "_target_": "keras.losses.sparse_categorical_crossentropy",
            "_partial_": True,
            "from_logits": True,
        },
        "metrics": {
            "accuracy": {"_target_": "keras.metrics.sparse_categorical_accuracy", "_partial_": True}
        },
        "optimizer": {
            "_target_": "tensorflow.compat.v1.train.AdamOptimizer",
            "learning_rate": 0.01,
        },
        "train": TrainConfig(steps=20, log_every=5, evaluate_every=10, checkpoint_every=10),
        "tracking": TrackingConfig(uri=None),
    }
    return RunConfig(**{**fields, **changes})


# One weight, no metrics, no slots: a run of it takes half the time of the tiny experiment's.
LINEAR: dict[str, Any] = {
    "model": {"_target_": "tests.samples.odd.Linear"},
    "loss": {"_target_": "tests.samples.odd.Sum"},
    "metrics": {},
    "optimizer": {
        "_target_": "tensorflow.compat.v1.train.GradientDescentOptimizer",
        "learning_rate": 0.01,
    },
}

# Two dense layers without random or moving state.
PLAIN: dict[str, Any] = {"model": {"_target_": "tests.samples.odd.Plain"}, "metrics": {}}

# In place of all that a graph of one's own stands for.
OWN_GRAPH: dict[str, Any] = {key: {} for key in ("data", "model", "loss", "metrics", "optimizer")}


def program(name: str, data: str, params: dict[str, Any], **splits: Any) -> dict[str, Any]:
    """Returns what makes a configuration one of a program in `tests.samples.programs`.

    Args:
      name: of the model_fn.
      data: name of the input_fn.
      params: of the model_fn.
      **splits: split -> arguments of the input_fn.
    """
    target = f"tests.samples.programs.{data}"
    return {
        **OWN_GRAPH,
        "model_fn": {"_target_": f"tests.samples.programs.{name}"},
        "params": params,
        "input_fns": {
            split: {"_target_": target, **arguments} for split, arguments in splits.items()
        },
    }
