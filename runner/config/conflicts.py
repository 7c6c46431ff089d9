"""The settings that a run cannot combine: one table, from which checks and a page are made.

A feature that does not go with another adds a row here. `IN_A_CONFIGURATION`, `IN_A_CLUSTER` and
`IN_A_SWEEP` are checked before anything is built; the rows of `IN_A_MODEL` show only there, and the
code that sees one raises its `error`. `python -m runner.config.conflicts` prints the page
`docs/reference/combinations.md`.
"""

from __future__ import annotations

from runner.config.conditions import Conflict

_PARTS = "data, model, loss, loss_weights, metrics, weighted_metrics, class_weight, optimizer"
_UPDATE = "train.accumulate, train.clip, train.ema_decay, train.evaluate_ema"
_SCAFFOLD_UPDATE = (
    "scaffolds.NAME.trainable, scaffolds.NAME.freeze_until_step, "
    "scaffolds.NAME.learning_rate_multiplier"
)
_CALLBACKS = "a callback works on a Keras model whose steps follow each other"
_WHOLE_GRAPH = "it makes the whole graph, its update included"

# A graph of one's own.
_USER_GRAPH = "graph or model_fn"

IN_A_CONFIGURATION = (
    Conflict("graph", "model_fn", "a run has one graph", "delete one of them"),
    Conflict("no model_fn", "params, input_fns", "only a model_fn reads it", "delete {key}"),
    Conflict(
        _USER_GRAPH,
        _PARTS,
        _WHOLE_GRAPH,
        "delete {key}; its values belong in the arguments of graph, or in params",
    ),
    Conflict(_USER_GRAPH, _UPDATE, _WHOLE_GRAPH, "do it in your graph"),
    Conflict(
        _USER_GRAPH,
        _SCAFFOLD_UPDATE,
        _WHOLE_GRAPH,
        "leave its variables out of the var_list of your graph's optimizer",
    ),
    Conflict(
        _USER_GRAPH,
        "evaluate.split=train",
        _WHOLE_GRAPH,
        "evaluate.split=test, with an input for mode test that reads the training data once",
    ),
    Conflict(
        _USER_GRAPH, "devices", "it makes the whole graph, and places it itself", "set devices=1"
    ),
    Conflict(
        _USER_GRAPH,
        "cluster.mode=collective",
        _WHOLE_GRAPH,
        "set cluster.mode=parameter_servers",
    ),
    Conflict(_USER_GRAPH, "callbacks", _CALLBACKS, "use hooks"),
    Conflict(
        _USER_GRAPH, "proof, scaffolds.NAME.proof", "a proof calls a Keras model", "delete {key}"
    ),
    Conflict(
        _USER_GRAPH,
        "export.format=keras, export.format=weights",
        "a file of Keras holds a Keras model",
        "set export.format=savedmodel",
    ),
    Conflict(
        f"{_USER_GRAPH} & no train.steps_per_epoch",
        "train.epochs",
        "the length of an epoch is not known",
        "set train.steps_per_epoch",
    ),
    Conflict(
        "model.jit_compile",
        "devices",
        "XLA compiles for one device",
        "set devices=1, or delete model.jit_compile",
    ),
    Conflict(
        "no tracking.uri",
        "export.register",
        "MLflow registers a model of a run that it has recorded",
        "set tracking.uri to the store that the run is recorded in",
    ),
    Conflict(
        "export.which=scaffolds",
        "export.register",
        "a registered model belongs to a run, and no run has these values",
        "delete export.register",
    ),
    Conflict(
        "export.register",
        "export.format=keras, export.format=weights",
        "MLflow serves SavedModels",
        "export in both formats, one after the other",
    ),
    Conflict(
        "export.register",
        "export.names",
        "a SavedModel is registered, and not tensors under other names",
        "delete one of the two",
    ),
    Conflict(
        "no export.register",
        "export.alias",
        "an alias names a version of a registered model",
        "add export.register=NAME",
    ),
    Conflict("predict.file", "predict.data", "one of them gives the features", "delete one"),
    Conflict(
        "MLflow before 3.7",
        "tracking.system_metrics",
        "it records no load from here",
        "install mlflow>=3.7, or delete it",
    ),
)

_AVERAGES = (
    "while the chief evaluates, the averages replace the weights on the servers, and the other "
    "workers would train them"
)
_EVALUATES_WEIGHTS = "train.evaluate_ema=false evaluates the weights"
_AVERAGED = "parameter servers & several workers & evaluated averages"
_NO_CLUSTER = "cluster=local starts a cluster on this machine, and TF_CONFIG names one"

IN_A_CLUSTER = (
    Conflict(
        "a cluster",
        "model.jit_compile",
        "XLA compiles within one process, and a step exchanges values with others",
        "delete model.jit_compile",
    ),
    Conflict(
        "parameter servers",
        "train.non_finite.action=rollback",
        "the other workers would continue with the values that were not finite",
        "train.non_finite.action=raise; with cluster.restarts the run itself goes back",
    ),
    Conflict(
        _AVERAGED, "train.ema_decay", _AVERAGES, f"{_EVALUATES_WEIGHTS}; or train.ema_decay=null"
    ),
    Conflict(
        f"{_AVERAGED} & no train.ema_decay",
        "optimizer.use_ema",
        _AVERAGES,
        f"{_EVALUATES_WEIGHTS}; or optimizer.use_ema=false",
    ),
    Conflict(
        "parameter servers",
        "devices",
        "parameter servers hold the variables; cluster=collective goes with devices",
        "set devices=1, or cluster=collective",
    ),
    Conflict("parameter servers", "callbacks", _CALLBACKS, "use hooks, or cluster=collective"),
    Conflict(
        "parameter servers & no train.steps_per_epoch",
        "train.epochs",
        "the length of an epoch is not known",
        "set train.steps_per_epoch",
    ),
    Conflict(
        "collective updates",
        "cluster.ps, cluster.placement",
        "there are no parameter servers; all tasks make every update together",
        "delete it, or set cluster.mode=parameter_servers",
    ),
    Conflict(
        "one worker",
        "cluster.mode=collective",
        "there is no other task to share a batch with",
        "cluster.workers=2 or more, or cluster=none",
    ),
    Conflict(
        "no cluster",
        "cluster.workers, cluster.ps, cluster.restarts, cluster.exposed, cluster.mode, "
        "cluster.evaluator, cluster.placement",
        "one process would train, to which this means nothing",
        f"delete it; {_NO_CLUSTER}",
    ),
    Conflict(
        "TF_CONFIG",
        "cluster.workers, cluster.ps, cluster.restarts, cluster.exposed",
        "it names the tasks",
        f"delete it; {_NO_CLUSTER}",
    ),
)

IN_A_SWEEP = (
    Conflict(
        "a sweep",
        "cluster.local",
        "a trial is one process",
        "cluster=none; or start each trial as a separate run",
    ),
    Conflict(
        "a sweep",
        "TF_CONFIG",
        "each task would sweep by itself, and no trial would have all of its tasks",
        "unset TF_CONFIG; or start each trial as a separate run",
    ),
)

PART_OF_OPTIMIZER = Conflict(
    "a model that has an optimizer",
    "an argument of `optimizer` without its `_target_`",
    "it would belong to another optimizer, the default of runs",
    "set it where the model is compiled; an argument of the function that compiles it is "
    "model.NAME; or name the whole optimizer: optimizer=adam",
)
AVERAGED_TWICE = Conflict(
    "an optimizer with use_ema",
    "train.ema_decay",
    "both keep moving averages of the weights, and evaluation reads one of them",
    "delete one of the two",
)
AVERAGED_BY_BUILT = Conflict(
    "an optimizer that the model has built",
    "train.ema_decay",
    "an optimizer makes its averages when it is built",
    "compile the model with use_ema=True instead",
)
FROZEN_BY_FTRL = Conflict(
    "Ftrl",
    "scaffolds.NAME.freeze_until_step",
    "a frozen variable has the learning rate 0, by which Ftrl divides",
    "use another optimizer, or trainable=false and a second run that starts from this",
)
WITHOUT_RATE = Conflict(
    "an optimizer without a learning_rate",
    "scaffolds.NAME.freeze_until_step, scaffolds.NAME.learning_rate_multiplier, "
    "train.non_finite.action=rollback",
    "all of these multiply the learning rate of a variable",
    "name an optimizer that has it, or delete the setting",
)
ACCUMULATED_TWICE = Conflict(
    "a train_step that updates several times",
    "train.accumulate",
    "the gradients of several batches make one update",
    "delete train.accumulate, and accumulate in train_step",
)
WITHOUT_EFFECT = Conflict(
    "a train_step or test_step of the model's own that does not use it",
    "loss, metrics, optimizer, train.clip, train.accumulate, train.ema_decay",
    "the model computes its loss, metrics and update itself",
    "delete {key}, or use self.compute_loss, self.compute_metrics and self.optimizer",
)
WEIGHTED_TWICE = Conflict(
    "sample weights, or labels of several outputs",
    "class_weight",
    "as in Keras, examples are weighted by the class of their only label, or by the data",
    "delete class_weight, and let the data give (features, labels, weights)",
)
SUMMED_LOSS = Conflict(
    "several devices or tasks",
    "a loss with the reduction 'sum'",
    "each adds the gradient of the mean over its examples, weighted by their number",
    "reduction=sum_over_batch_size, with a learning rate times the size of a batch",
)
SUMMED_ACTIVITY = Conflict(
    "several devices or tasks",
    "a layer with an activity_regularizer, in older versions of Keras",
    "there its loss is a sum over the examples, of which each device has a part",
    "a newer version of Keras, where it is a mean, or one device",
)
UNSUMMED_METRIC = Conflict(
    "several devices or tasks",
    "a metric whose state has another aggregation than 'sum'",
    "each replica updates its own state, and the run adds them up",
    "give the metric state that is a sum, or train on one device",
)
TRAINED_BY_FUNCTION = Conflict(
    "a cluster",
    "a GraphSpec whose train_op is a function",
    "workers can run only operations",
    "return an operation as train_op",
)
IN_A_MODEL = (
    *(
        PART_OF_OPTIMIZER,
        AVERAGED_TWICE,
        AVERAGED_BY_BUILT,
        FROZEN_BY_FTRL,
        WITHOUT_RATE,
        ACCUMULATED_TWICE,
    ),
    *(WITHOUT_EFFECT, WEIGHTED_TWICE, SUMMED_LOSS, SUMMED_ACTIVITY, UNSUMMED_METRIC),
    TRAINED_BY_FUNCTION,
)

_HEAD = """\
# Combinations

Settings that cannot be combined. A command that combines them ends with the reason and the remedy,
before anything is created. This page is generated from the source by
`python -m runner.config.conflicts`.
"""
_SECTIONS = {
    "In any run": IN_A_CONFIGURATION,
    "In clusters": IN_A_CLUSTER,
    "In sweeps": IN_A_SWEEP,
    "Depending on the model, the optimizer and the data": IN_A_MODEL,
}


def page() -> str:
    """Returns the page of combinations."""
    lines = [_HEAD]
    for title, conflicts in _SECTIONS.items():
        lines += [f"## {title}", "", "| with | cannot be set | because | instead |"]
        lines += ["| --- | --- | --- | --- |", *(conflict.row() for conflict in conflicts), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
