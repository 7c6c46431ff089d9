"""The keys of a scaffold, and of the warm start as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from runner.config import choices, value_rules
from runner.config.choices import StateClass
from runner.config.value_rules import at_least


@dataclass
class VariablesConfig:
    """The variables of a scaffold, as patterns over their names: docs/reference/restoration.md."""

    # The variables it owns, for example `[cnn/*]`; `*` also matches `/`.
    include: list[str] = MISSING
    # Exceptions from `include`, for example `[cnn/*/bias]`.
    exclude: list[str] = field(default_factory=list)


@dataclass
class VocabularyConfig:
    """Two vocabulary files, one token per line, that define how rows or columns move."""

    # The vocabulary that the checkpoint was trained with.
    old: str = MISSING
    # The vocabulary of this model.
    new: str = MISSING
    # The axis that counts tokens: 0 in an embedding, usually the last in an output layer.
    axis: int = 0


@dataclass
class ScaffoldConfig:
    """One part of the model and where its values come from."""

    # The variables this scaffold owns.
    variables: VariablesConfig = field(default_factory=VariablesConfig)
    # The checkpoint to start from; null initialises the variables instead. A file, directory or
    # prefix, `experiment:NAME`, or an MLflow URI (`runs:/...`, `models:/...`).
    checkpoint: str | None = field(default=None, metadata=value_rules.CHECKPOINT)
    # Pins the checkpoint by a SHA-256, in hexadecimal: the digest that a plan shows, or its file's.
    sha256: str | None = field(default=None, metadata=value_rules.SHA256)
    # Which checkpoint of a directory: `latest`, `best`, or a global step. Null uses the best of an
    # experiment and the latest of any other source.
    which: str | None = field(default=None, metadata=value_rules.WHICH)
    # Averages several checkpoints: `last N`, or a list of steps or paths; null uses one.
    average: Any = field(default=None, metadata=value_rules.AVERAGE)
    # Name in the model -> name in the checkpoint, for example `{lstm/: encoder/rnn/}`. Each rule is
    # a whole name, a prefix ending in `/`, or another pattern; the first rule that matches wins.
    # Optimizer slots and averages are renamed along with their variable.
    rename: dict[str, str] = field(default_factory=dict, metadata=value_rules.STRINGS)
    # Pattern over variables -> expression over the checkpoint's tensors, for example
    # `{encoder/layer_{n}/: "bert.layer.{n}. | torch"}`. A pattern that ends in `/` is for a module.
    rules: dict[str, str] = field(default_factory=dict, metadata=value_rules.STRINGS)
    # False freezes its variables: they are left out of the optimizer.
    trainable: bool = True
    # True lets the batch-norm statistics of a frozen scaffold follow the training data; by default
    # they stay, as in Keras's layers with `trainable = False`.
    update_statistics: bool = False
    # Freezes its variables until this global step.
    freeze_until_step: int = field(default=0, metadata=at_least(0, "0 trains them from the start"))
    # Factor for the learning rate of its variables.
    learning_rate_multiplier: float = field(default=1.0, metadata=value_rules.SCALE)
    # True allows the checkpoint to be missing; the variables are then initialised.
    optional: bool = False
    # Which classes of state to restore from the checkpoint.
    state: list[StateClass] = field(
        default_factory=lambda: [StateClass.weights, StateClass.batch_norm],
        metadata=value_rules.STATE,
    )
    # True restores the weights from the checkpoint's moving averages.
    use_ema: bool = False
    # What to do when the checkpoint lacks a tensor for one of the variables.
    missing: choices.Missing = choices.Missing.error
    # What to do when, after all conversions, a tensor and its variable differ in shape.
    shape: choices.ShapePolicy = choices.ShapePolicy.error
    # Variable pattern -> the tensor's axes in the variable's order, as `numpy.transpose` takes
    # them: `[1, 0]` for a dense kernel of PyTorch.
    transpose: dict[str, list[int]] = field(default_factory=dict, metadata=value_rules.AXES)
    # Variable pattern -> vocabularies that define how its rows or columns move.
    vocabulary: dict[str, VocabularyConfig] = field(default_factory=dict)
    # Variable pattern -> a named conversion, for example `torch_lstm`.
    convert: dict[str, str] = field(default_factory=dict, metadata=value_rules.STRINGS)
    # True allows casts that may lose more than a float's precision, for example from float to int.
    cast: bool = False
    # True makes NaN or infinity in a restored tensor an error instead of a warning.
    finite: bool = False
    # A reference, `.npz`: what the source computes. The part of the model that this scaffold
    # restores must compute the same, or the run does not start.
    proof: str | None = field(default=None, metadata=value_rules.PROOF)
    # Overrides for the experiment in `experiment:NAME`, as on its command line.
    overrides: list[str] = field(default_factory=list)


@dataclass
class RestorationConfig:
    """Rules for the warm start as a whole."""

    # What to do when several scaffolds claim one variable.
    collision: choices.Collision = choices.Collision.error
    # Scaffold or variable pattern -> how many of its variables must be restored.
    expect: dict[str, choices.Expect] = field(default_factory=dict)
    # True reads every restored variable back and compares it with its source.
    verify: bool = False
    # Which initializers to run before restoring.
    initialize: choices.Initialize = choices.Initialize.all
