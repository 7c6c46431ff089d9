"""The keys of `train` and `checkpoint`, and the keys of the other modes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from runner.config import choices, value_rules
from runner.config.choices import NonFinite
from runner.config.keys import TARGET, TargetField
from runner.config.value_rules import above, at_least

# Steps between two evaluations where neither the configuration nor an epoch says otherwise.
EVALUATE_EVERY = 250

OBJECTIVE = "validation/loss"
"""The default of `train.objective`; the first metric in its place, of a model without a loss."""

_MAXIMIZED = r"(acc|accuracy|auc|f1|f1_score|precision|recall|top_k|iou|io_u)"
_MINIMIZED = r"(loss|error|mse|mae|rmse|perplexity|crossentropy|divergence)"


def metric_of(objective: str) -> str:
    """Returns the name that an objective, such as `validation/loss`, has in an evaluation."""
    return objective.removeprefix("validation/")


def implied_goal(objective: str) -> choices.Goal | None:
    """Returns the goal that the name of a metric implies; None where that is in doubt."""
    name = objective.rpartition("/")[2].lower()
    is_loss = name == "loss" or name.endswith("_loss")
    maximized = not is_loss and re.search(rf"(^|_){_MAXIMIZED}(_|$)", name)
    minimized = is_loss or re.search(rf"(^|_){_MINIMIZED}(_|$)", name)
    if bool(maximized) == bool(minimized):
        return None
    return choices.Goal.maximize if maximized else choices.Goal.minimize


@dataclass
class NonFiniteConfig:
    """The reaction to a loss, or a weight about to be saved, that is NaN or infinite."""

    # What to do then.
    action: NonFinite = NonFinite["raise"]
    # How many rollbacks a run makes, its resumptions included, before it raises an error.
    rollbacks: int = field(default=3, metadata=at_least(1))
    # Factor for the learning rate at each rollback.
    learning_rate_scale: float = field(default=0.5, metadata=above(0, most=1))


@dataclass
class ClipConfig:
    """Gradient clipping, applied in this order; null does not clip."""

    # Maximum absolute value of a gradient element.
    value: float | None = field(default=None, metadata=above(0, "null does not clip"))
    # Maximum L2 norm of a variable's gradient.
    norm: float | None = field(default=None, metadata=above(0, "null does not clip"))
    # Maximum L2 norm of all gradients together.
    global_norm: float | None = field(default=None, metadata=above(0, "null does not clip"))


@dataclass
class TrainConfig:
    """The length of the training, and how often it logs, evaluates and saves.

    Numbers count global steps. The three `..._every` also accept strings such as `10 minutes`, and
    where training counts epochs, `2 epochs` or `at epoch 3, at epoch 5`.
    """

    # The global step at which training ends. With `epochs`, their number decides it.
    steps: int = field(default=1000, metadata=at_least(1))
    # How many passes over the training data to make; null trains for `steps`. Data that end are
    # repeated, and their number of batches is the length of an epoch.
    epochs: int | None = field(default=None, metadata=at_least(1, "null trains for train.steps"))
    # The length of an epoch in global steps, for data whose number of batches is not known; null
    # takes that number. As in `fit`, an epoch ends where data end too.
    steps_per_epoch: int | None = field(default=None, metadata=at_least(1))
    # How many epochs count as done before the first step, as `initial_epoch` of `fit`: `epochs`
    # includes them, and callbacks see the numbers after them.
    initial_epoch: int = field(default=0, metadata=at_least(0))
    # How often training metrics are logged.
    log_every: int | str = field(default=50, metadata=value_rules.SCHEDULE)
    # How often the validation split is evaluated. Null is after every epoch if the run counts
    # epochs, and every 250 steps otherwise; steps also evaluate at the end. `never` evaluates
    # nothing, and there is no best checkpoint.
    evaluate_every: int | str | None = field(default=None, metadata=value_rules.SCHEDULE)
    # How often a checkpoint is saved; also at the end.
    checkpoint_every: int | str = field(default=250, metadata=value_rules.SCHEDULE)
    # Whether checkpoints hold the position in the training data and its shuffle buffer. False
    # restarts the data when a run resumes; data whose position cannot be saved need it.
    save_input: bool = True
    # How many of the newest checkpoints to keep.
    keep_checkpoints: int = field(default=2, metadata=at_least(1))
    # The metric that selects the best checkpoint. A sweep uses its best value. The first metric
    # stands for the default where a model's own `test_step` returns no loss.
    objective: str = OBJECTIVE
    # Whether a smaller or a larger objective is better. Null infers it from the objective's name:
    # losses and errors are minimized, accuracies, `auc`, `f1`, precision, recall and IoU maximized.
    goal: choices.Goal | None = None
    # How many batches to accumulate for one optimizer update. The update is one global step;
    # gradients and metrics are averaged.
    accumulate: int = field(default=1, metadata=at_least(1))
    clip: ClipConfig = field(default_factory=ClipConfig)
    # Decay of moving averages of the trained weights, for example 0.999; null keeps none.
    ema_decay: float | None = field(default=None, metadata=value_rules.DECAY)
    # Whether moving averages are evaluated and exported as the weights. Null does so with the ones
    # that `train.ema_decay` keeps. The averages of an optimizer with `use_ema` it treats as `fit`
    # does: the weights are evaluated, and at the end of training the averages replace them.
    evaluate_ema: bool | None = None
    non_finite: NonFiniteConfig = field(default_factory=NonFiniteConfig)

    @property
    def evaluates_averages(self) -> bool:
        """Whether moving averages stand for the weights, see `evaluate_ema`."""
        return self.ema_decay is not None if self.evaluate_ema is None else self.evaluate_ema

    @property
    def ends_with_averages(self) -> bool:
        """Whether averages of the optimizer replace the weights at the end, as in `fit`."""
        return self.evaluate_ema is None and self.ema_decay is None

    @property
    def direction(self) -> choices.Goal:
        """The `goal`, or the one that the objective's name implies; minimize if it implies none."""
        return self.goal or implied_goal(self.objective) or choices.Goal.minimize


@dataclass
class CheckpointConfig:
    """Settings of the run's own checkpoints."""

    # What to do when a save fails, for example because the disk is full. If the last save of a run
    # fails, that is always an error.
    on_error: choices.OnError = choices.OnError["warn"]


@dataclass
class PlanConfig:
    """Settings of `mode=plan`."""

    # A table for people, JSON for programs, or a web page, written to standard output.
    format: choices.PlanFormat = choices.PlanFormat.table
    # True gives every variable a row, including optimizer slots, counters and seeds.
    full: bool = False


@dataclass
class EvaluateConfig:
    """Settings of `mode=evaluate`."""

    # The checkpoint of the run: `best`, `latest` or a global step. `scaffolds` needs no run: it
    # evaluates the values that training would start from, from the scaffolds' checkpoints and
    # initializers.
    which: str = field(default="best", metadata=value_rules.RUN_WHICH)
    # The split to evaluate. Metrics of `test` are recorded with the run; metrics of the other
    # splits are only shown.
    split: choices.EvaluatedSplit = choices.EvaluatedSplit.test


_SUFFIXES = (".npz", ".csv")


@dataclass
class PredictConfig:
    """Settings of `mode=predict`."""

    # The checkpoint, as in `evaluate.which`.
    which: str = field(default="best", metadata=value_rules.RUN_WHICH)
    # The split to predict for; its labels are not used.
    split: choices.EvaluatedSplit = choices.EvaluatedSplit.test
    # A file of features in place of the split: `.npz` or `.npy` with arrays [count, ...], or
    # `.jsonl` with one example a line. Features that have names are arrays or keys of these names.
    file: str | None = None
    # `_target_` in place of the split: of a function that returns a `tf.data.Dataset` of batches,
    # or of data with splits like `data`. An export of a model that takes other features than
    # `data` gives, such as noise, reads their shapes from it.
    data: Any = field(default=None, metadata={TARGET: TargetField()})
    # Examples in a batch from `predict.file`.
    batch_size: int = field(default=32, metadata=at_least(1))
    # The file to write: one array for each output (`.npz`), or a table with one line for each
    # example (`.csv`). Null writes `predictions-STEP-SPLIT.npz` in the run directory. Nothing is
    # overwritten.
    to: str | None = field(
        default=None,
        metadata=value_rules.rule(
            lambda path: "" if path.endswith(_SUFFIXES) else "its suffix decides the format",
            choices=_SUFFIXES,
            words=" or ".join(f"`{suffix}`" for suffix in _SUFFIXES),
        ),
    )


@dataclass
class ExportConfig:
    """Settings of `mode=export`."""

    # The checkpoint, as in `evaluate.which`. The best one is exported to `export` in the run
    # directory, others to `export-STEP`, and `scaffolds` to `export-scaffolds` in `run_dir`.
    which: str = field(default="best", metadata=value_rules.RUN_WHICH)
    # The format. Files of Keras are `export-STEP.keras` and `export-STEP.weights.h5`.
    format: choices.ExportFormat = choices.ExportFormat.savedmodel
    # A scaffold: writes the values under the names and in the layout of its checkpoint instead, to
    # `export-SCAFFOLD/model.safetensors`, for example back to PyTorch.
    names: str | None = None
    # Registers the model in MLflow under this name; null does not register it.
    register: str | None = field(default=None, metadata=value_rules.MODEL_NAME)
    # Moves this alias to the registered version, as in `models:/NAME@ALIAS`; null moves none.
    alias: str | None = field(default=None, metadata=value_rules.ALIAS)
