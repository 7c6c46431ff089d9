"""The settings of an `Estimator`: `tf.estimator.RunConfig` and `WarmStartSettings`."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from runner.session.session_manager import PLACED_SOFTLY

VocabInfo = tf.compat.v1.train.VocabInfo
_DEFAULT: Any = object()


@dataclass
class RunConfig:
    """`tf.estimator.RunConfig`, with its arguments, defaults and messages.

    `cluster_spec` and the properties after it report the cluster in `TF_CONFIG`, in which
    `train_and_evaluate` trains; its `model_dir` is the default of the argument.
    Distribution strategies are refused.

    Attributes:
      model_dir: the directory of the checkpoints; None, the default, is a temporary directory.
      tf_random_seed: the graph's seed; None by default.
      save_summary_steps: steps between summaries, by default 100; None writes none.
      save_checkpoints_steps: steps between checkpoints.
      save_checkpoints_secs: seconds between checkpoints, by default 600 when neither is set; None
        for both saves none.
      session_config: the configuration of the sessions.
      keep_checkpoint_max: the number of checkpoints to keep, by default 5; None or 0 keeps all.
      keep_checkpoint_every_n_hours: hours between checkpoints that are never deleted, by default
        10000.
      log_step_count_steps: steps between logs of loss and speed, by default 100; None logs none.
      train_distribute, eval_distribute, experimental_distribute: None.
      device_fn: places operations; None by default.
      protocol: the protocol of servers in a cluster, by default grpc.
      experimental_max_worker_delay_secs: how long a worker may wait before it starts, by default
        60; workers start 5 seconds apart.
      session_creation_timeout_secs: how long a worker waits for the chief, by default 7200.
      checkpoint_save_graph_def: whether the graph is written beside the checkpoints, by default
        True.

    Raises:
      ValueError: when a value is not valid.
    """

    model_dir: Any = None
    tf_random_seed: int | None = None
    save_summary_steps: int | None = 100
    save_checkpoints_steps: int | None = _DEFAULT
    save_checkpoints_secs: int | None = _DEFAULT
    session_config: tf.compat.v1.ConfigProto | None = None
    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float | None = 10000
    log_step_count_steps: int | None = 100
    train_distribute: Any = None
    device_fn: Callable[..., Any] | None = None
    protocol: str | None = None
    eval_distribute: Any = None
    experimental_distribute: Any = None
    experimental_max_worker_delay_secs: int | None = None
    session_creation_timeout_secs: int | None = 7200
    checkpoint_save_graph_def: bool = True

    def __post_init__(self) -> None:
        self._tf_config: dict[str, Any] = json.loads(os.environ.get("TF_CONFIG") or "{}")
        if directory := self._tf_config.get("model_dir"):
            if self.model_dir not in (None, directory):
                raise ValueError(
                    "`model_dir` provided in RunConfig construct, if set, must have the same value "
                    f"as the model_dir in TF_CONFIG: {self.model_dir!r} and {directory!r}"
                )
            self.model_dir = directory
        if self.save_checkpoints_steps is self.save_checkpoints_secs is _DEFAULT:
            self.save_checkpoints_steps, self.save_checkpoints_secs = None, 600
        elif self.save_checkpoints_secs is _DEFAULT:
            self.save_checkpoints_secs = None
        elif self.save_checkpoints_steps is _DEFAULT:
            self.save_checkpoints_steps = None
        self._check()

    def _check(self) -> None:
        if None not in (self.save_checkpoints_steps, self.save_checkpoints_secs):
            raise ValueError(
                "`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set."
            )
        if (self.keep_checkpoint_max or 0) < 0:  # A Saver would delete what it has just written.
            raise ValueError("keep_checkpoint_max should be >= 0")
        for name in ("train_distribute", "eval_distribute", "experimental_distribute"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is not supported: a cluster trains by python -m runner.")

    def __setattr__(self, name: str, value: Any) -> None:
        # A subclass may have a property in place of a field, over TensorFlow's private attribute.
        if name == "model_dir" and value is not None:
            value = os.fsdecode(value)
        is_property = isinstance(getattr(type(self), name, None), property)
        super().__setattr__(f"_{name}" if is_property else name, value)

    def replace(self, **kwargs: Any) -> RunConfig:
        """Returns a copy with some fields changed.

        Setting one of `save_checkpoints_steps` and `save_checkpoints_secs` unsets the other.

        Raises:
          ValueError: when there is no such field, or a value is not valid.
        """
        unknown = kwargs.keys() - {field.name for field in fields(self)}
        if unknown:
            raise ValueError(f"Replacing {', '.join(sorted(unknown))} is not supported.")
        pair = ("save_checkpoints_steps", "save_checkpoints_secs")
        for name, other in (pair, pair[::-1]):
            if kwargs.get(name) is not None and other not in kwargs:
                kwargs = {**kwargs, other: None}
        changed = copy.deepcopy(self)  # Keeps attributes that a program has added.
        for name, value in kwargs.items():
            setattr(changed, name, value)
        changed._check()
        return changed

    @property
    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The cluster of `TF_CONFIG`; empty without one, and for an evaluator."""
        evaluates = self.task_type == "evaluator"
        return tf.train.ClusterSpec({} if evaluates else self._tf_config.get("cluster", {}))

    @property
    def task_type(self) -> str:
        """The task's type, by default `worker`."""
        return str(self._tf_config.get("task", {}).get("type", "worker"))

    @property
    def task_id(self) -> int:
        """The task's index, by default 0."""
        return int(self._tf_config.get("task", {}).get("index", 0))

    @property
    def is_chief(self) -> bool:
        """True if this task initialises and saves."""
        return self.task_type == self._chief or not self._tf_config.get("cluster")

    @property
    def _chief(self) -> str:
        """The chief's type; `master` is its older name."""
        return "master" if "master" in self._tf_config.get("cluster", {}) else "chief"

    @property
    def master(self) -> str:
        """The address of this task's server; empty in one process."""
        jobs = self.cluster_spec.as_dict()
        local = sum(map(len, jobs.values())) <= 1
        address = "" if local else f"grpc://{jobs[self.task_type][self.task_id]}"
        return str(self._tf_config.get("session_master", address))

    @property
    def num_ps_replicas(self) -> int:
        """The number of parameter servers."""
        return len(self.cluster_spec.as_dict().get("ps", ()))

    @property
    def num_worker_replicas(self) -> int:
        """The number of tasks that train, including the chief."""
        jobs = self.cluster_spec.as_dict()
        if self.task_type == "evaluator":
            return 0
        return len(jobs.get("worker", ())) + len(jobs.get(self._chief, ())) if jobs else 1


def session_config(config: RunConfig) -> tf.compat.v1.ConfigProto:
    """Returns a configuration with which a task of a cluster needs only the parameter servers."""
    if not config.master:
        return PLACED_SOFTLY
    index = "" if config.is_chief else f"/task:{config.task_id}"
    filters = ["/job:ps", f"/job:{config.task_type}{index}"]
    return tf.compat.v1.ConfigProto(allow_soft_placement=True, device_filters=filters)


def replica_device(config: RunConfig) -> Any:
    """Returns the function that places variables on parameter servers; None without any."""
    if not config.num_ps_replicas:
        return None
    return tf.compat.v1.train.replica_device_setter(
        worker_device=f"/job:{config.task_type}/task:{config.task_id}",
        cluster=config.cluster_spec,
    )


class WarmStartSettings(NamedTuple):
    """`tf.estimator.WarmStartSettings`: the arguments of `tf.compat.v1.train.warm_start`.

    In a configuration, a scaffold has `checkpoint`, `variables.include`, `vocabulary` and `rename`
    for them.

    Attributes:
      ckpt_to_initialize_from: a checkpoint or a directory of checkpoints.
      vars_to_warm_start: a regular expression over trainable variables, by default `.*`; a list of
        regular expressions over all variables; a list of variables; or None for the variables with
        a vocabulary only.
      var_name_to_vocab_info: variable -> `VocabInfo`, empty by default.
      var_name_to_prev_var_name: variable -> its name in the checkpoint, empty by default.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: Mapping[str, Any] = {}
    var_name_to_prev_var_name: Mapping[str, str] = {}


def warm_start_settings(warm_start_from: Any) -> WarmStartSettings | None:
    """Converts an Estimator's `warm_start_from` to settings.

    Args:
      warm_start_from: settings; the path of a checkpoint or a SavedModel; or None.

    Raises:
      TypeError: when it is something else.
    """
    if warm_start_from is None or isinstance(warm_start_from, WarmStartSettings):
        return warm_start_from
    path = tf.compat.as_str(warm_start_from)
    variables = Path(path, "variables", "variables")
    saved_model = variables.with_suffix(".index").exists()
    return WarmStartSettings(str(variables) if saved_model else path)
