"""`tf.estimator.Estimator`, for programs that drive a `model_fn` from Python."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from runner.checkpoints.locate import latest_checkpoint
from runner.estimator.model_fn import ModelFn, evaluation_graph, serving_graph, training_graph
from runner.estimator.results import StopAfterBatches, examples, select, write_summaries
from runner.estimator.run_config import (
    RunConfig,
    replica_device,
    session_config,
    warm_start_settings,
)
from runner.estimator.spec import EstimatorSpec, ModeKeys, check_positive
from runner.graph.evaluation import separate_evaluation
from runner.graph.graph_spec import GraphSpec, local_init_op
from runner.graph.input_pipeline import TrainingInput
from runner.graph.serving import save_model
from runner.graph.user_graph import serving_of
from runner.internals.tensorflow import add_listeners, get_timestamped_export_dir
from runner.session.monitored_session import (
    ChiefSessionCreator,
    MonitoredSession,
    MonitoredTrainingSession,
)
from runner.training.evaluation import step_of

_Hooks = Iterable[tf.compat.v1.train.SessionRunHook]
_InputFn = Callable[..., Any]


class Estimator:
    """`tf.estimator.Estimator`: trains, evaluates, predicts and exports.

    Checkpoints in `model_dir` have the format of TensorFlow's Estimator, and training can continue
    from its checkpoints. For plans and MLflow, use the `model_fn` in the configuration of an
    experiment instead.

    Args:
      model_fn: takes `features` and any of `labels`, `mode`, `params`, `config`; returns an
        `EstimatorSpec`.
      model_dir: the directory of checkpoints; by default `config.model_dir`, or else a temporary
        directory.
      config: a `RunConfig`, by default `RunConfig()`.
      params: a dict, or an object such as an `HParams`, of which `model_fn` and `input_fn`s each
        get a copy; None, the default, is an empty dict.
      warm_start_from: a checkpoint, a SavedModel or `WarmStartSettings`, applied when `model_dir`
        has no checkpoint; None by default.

    Raises:
      ValueError: when an argument is not valid, or `TF_CONFIG` names a cluster without
        a chief.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | bytes | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Any = None,
        warm_start_from: Any = None,
    ) -> None:
        config = config or RunConfig()
        if config.cluster_spec and not {"chief", "master"} & set(config.cluster_spec.jobs):
            raise ValueError('If "cluster" is set in TF_CONFIG, it must have one "chief" node.')
        directory = None if model_dir is None else os.fsdecode(model_dir)
        if None not in (directory, config.model_dir) and directory != config.model_dir:
            raise ValueError(
                "`model_dir` are set both in constructor and `RunConfig`, but with different "
                f"values. In constructor: '{directory}', in `RunConfig`: '{config.model_dir}' "
            )
        self._model_dir = directory or config.model_dir or tempfile.mkdtemp()
        changed = {} if config.model_dir == self._model_dir else {"model_dir": self._model_dir}
        self._config = config.replace(**changed)
        self._session_config = config.session_config or session_config(config)
        self._model = ModelFn(model_fn, copy.deepcopy(params), self._config)
        self._warm_start = warm_start_settings(warm_start_from)

    @property
    def model_dir(self) -> str:
        """The directory of the checkpoints."""
        return str(self._model_dir)

    @property
    def config(self) -> RunConfig:
        """A copy of the configuration, whose `model_dir` is set."""
        return copy.deepcopy(self._config)

    @property
    def model_fn(self) -> Callable[..., EstimatorSpec]:
        """The `model_fn` with `params` bound; takes `features`, `labels`, `mode` and `config`."""
        return lambda features, labels, mode, config: replace(self._model, config=config).spec(
            features, labels, mode
        )

    @property
    def params(self) -> Any:
        """A copy of the `params`; an empty dict if there are none."""
        return copy.deepcopy(self._model.params or {})

    def latest_checkpoint(self) -> str | None:
        """Returns the newest checkpoint in `model_dir`, or None."""
        return latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Returns the names of the variables in the newest checkpoint.

        Raises:
          ValueError: when there is no checkpoint.
        """
        return [name for name, _ in tf.train.list_variables(self._trained())]

    def get_variable_value(self, name: str) -> Any:
        """Returns the value of a variable in the newest checkpoint, a NumPy array.

        Raises:
          ValueError: when there is no checkpoint.
        """
        return tf.train.load_variable(self._trained(), name)

    def _trained(self) -> str:
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            raise ValueError(f"Could not find trained model in model_dir: {self.model_dir}.")
        return checkpoint

    def eval_dir(self, name: str | None = None) -> str:
        """Returns the directory of the summaries of an evaluation."""
        return str(Path(self.model_dir, f"eval_{name}" if name else "eval"))

    def train(
        self,
        input_fn: _InputFn,
        hooks: _Hooks | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Iterable[Any] | None = None,
    ) -> Estimator:
        """Trains from the newest checkpoint, or from the start, and returns the Estimator.

        Args:
          input_fn: returns a dataset or tensors.
          hooks: hooks of this training; none by default.
          steps: how many steps; None, the default, trains until the input or a hook ends it.
          max_steps: the global step at which it ends; None by default.
          saving_listeners: `tf.compat.v1.train.CheckpointSaverListener`s; none by default.

        Raises:
          ValueError: when both `steps` and `max_steps` are given, one is not positive, or this is
            an evaluator or parameter server of a cluster.
        """
        if self._config.task_type in ("evaluator", "ps"):
            raise ValueError(
                "Train has been called wrong configuration. Please use train_and_evaluate: this "
                f"task is of type {self._config.task_type}"
            )
        if steps is not None and max_steps is not None:
            raise ValueError("Can not provide both steps and max_steps.")
        check_positive(steps=steps, max_steps=max_steps)
        all_hooks = list(hooks or ())
        latest = self.latest_checkpoint()
        if max_steps is not None and latest and step_of(latest) >= max_steps:
            tf.compat.v1.logging.info("Skipping training since max_steps has already saved.")
            return self
        if steps is not None or max_steps is not None:
            all_hooks.append(tf.compat.v1.train.StopAtStepHook(steps, max_steps))
        with self._graph(replica_device(self._config)):
            spec = training_graph(self._model, input_fn)
            self._warm_start_unless(latest)
            self._train(spec, all_hooks, list(saving_listeners or ()))
        return self

    def _train(self, spec: GraphSpec, hooks: list[Any], listeners: list[Any]) -> None:
        config, log_every = self._config, self._config.log_step_count_steps
        assert spec.loss is not None  # EstimatorSpec requires it in TRAIN.
        saver = spec.scaffold.saver or tf.compat.v1.train.Saver(
            sharded=True,
            max_to_keep=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            defer_build=True,
            save_relative_paths=True,
        )
        scaffold = _starting_input(spec.scaffold, spec.input, saver)
        summaries = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SUMMARIES)
        if not any(summary.op.name == "loss" for summary in summaries):
            tf.compat.v1.summary.scalar("loss", spec.loss)
        hooks += [*spec.hooks, tf.compat.v1.train.NanTensorHook(spec.loss)]
        if log_every is not None:
            tensors = {"loss": spec.loss, "step": tf.compat.v1.train.get_global_step()}
            hooks.append(tf.compat.v1.train.LoggingTensorHook(tensors, every_n_iter=log_every))
        program_hooks = [*spec.chief_hooks, *hooks]
        saver_hooks = self._saver_hooks(program_hooks, scaffold, listeners=listeners)
        with MonitoredTrainingSession(
            master=config.master,
            is_chief=config.is_chief,
            max_wait_secs=config.session_creation_timeout_secs or 7200,
            checkpoint_dir=self.model_dir,
            scaffold=scaffold,
            hooks=hooks,
            chief_only_hooks=[*spec.chief_hooks, *saver_hooks],
            save_checkpoint_secs=0,  # A hook saves.
            save_summaries_steps=config.save_summary_steps or 0,
            config=self._session_config,
            log_step_count_steps=log_every or 0,
        ) as session:
            while not session.should_stop():
                session.run([spec.train_op, spec.loss])

    def _saver_hooks(
        self, hooks: list[Any], scaffold: tf.compat.v1.train.Scaffold, *, listeners: list[Any]
    ) -> list[tf.compat.v1.train.CheckpointSaverHook]:
        """Returns a hook that saves checkpoints, unless the program has one or saving is off."""
        config, kind = self._config, tf.compat.v1.train.CheckpointSaverHook
        program_hook = next((hook for hook in hooks if isinstance(hook, kind)), None)
        if program_hook is not None:
            add_listeners(program_hook, listeners)
        elif config.save_checkpoints_secs or config.save_checkpoints_steps:
            saver_hook = kind(
                self.model_dir,
                config.save_checkpoints_secs,
                config.save_checkpoints_steps,
                scaffold=scaffold,
                listeners=listeners,
                save_graph_def=config.checkpoint_save_graph_def,
            )
            return [saver_hook]
        elif listeners:
            raise ValueError(
                "There should be a CheckpointSaverHook to use saving_listeners. Please set one of "
                "the RunConfig.save_checkpoints_steps or RunConfig.save_checkpoints_secs."
            )
        return []

    def evaluate(
        self,
        input_fn: _InputFn,
        steps: int | None = None,
        hooks: _Hooks | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Returns the metrics of a checkpoint, including `loss` and `global_step`.

        They are also written to `eval_dir(name)` for TensorBoard.

        Args:
          input_fn: returns a dataset or tensors.
          steps: how many batches; None, the default, evaluates all.
          hooks: hooks of this evaluation; none by default.
          checkpoint_path: by default the newest one; without any, the initial values are used.
          name: distinguishes evaluations from others; None by default.

        Raises:
          ValueError: when `steps` is not positive.
        """
        check_positive(steps=steps)
        checkpoint = checkpoint_path or self.latest_checkpoint()
        with self._graph():
            spec = evaluation_graph(self._model, input_fn)
            self._warm_start_unless(checkpoint)
            saver = spec.scaffold.saver or tf.compat.v1.train.Saver(sharded=True)
            evaluation = separate_evaluation("eval", spec, saver)
            stop = [] if steps is None else [StopAfterBatches(steps)]
            step = tf.compat.v1.train.get_global_step()
            evaluation = replace(
                evaluation,
                values={**evaluation.values, "global_step": tf.identity(step)},
                hooks=[*(hooks or ()), *stop, *evaluation.hooks],
            )
            values = evaluation.evaluate_checkpoint(checkpoint, config=self._session_config)
        write_summaries(self.eval_dir(name), values, checkpoint)
        return values

    def predict(
        self,
        input_fn: _InputFn,
        predict_keys: Iterable[str] | str | None = None,
        hooks: _Hooks | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yields the predictions, example by example, as NumPy arrays or dicts of arrays.

        Args:
          input_fn: returns a dataset or tensors, of features or of features and labels.
          predict_keys: the names of the predictions; None, the default, for all.
          hooks: hooks of this prediction; none by default.
          checkpoint_path: by default the newest one; without any, the initial values are used.
          yield_single_examples: False yields whole batches.

        Raises:
          ValueError: when no prediction has one of the names, or their batches differ in length.
        """
        checkpoint = checkpoint_path or self.latest_checkpoint()
        with self._graph():
            features, _, source = self._model.input(input_fn, ModeKeys.PREDICT)
            spec = self._model.spec(features, None, ModeKeys.PREDICT)
            self._warm_start_unless(checkpoint)
            predictions = select(spec.predictions, predict_keys)
            scaffold = _starting_input(spec.scaffold, source, spec.scaffold.saver)
            creator = ChiefSessionCreator(
                scaffold,
                config=self._session_config,
                checkpoint_filename_with_path=checkpoint,
            )
            with MonitoredSession(creator, [*(hooks or ()), *spec.prediction_hooks]) as session:
                while not session.should_stop():
                    batch = session.run(predictions)
                    yield from examples(batch) if yield_single_examples else [batch]

    def export_saved_model(
        self,
        export_dir_base: str | bytes | os.PathLike[str],
        serving_input_receiver_fn: Callable[[], Any] | None,
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
    ) -> bytes:
        """Writes a SavedModel into a directory named by a timestamp, and returns its path.

        Args:
          export_dir_base: the directory above it.
          serving_input_receiver_fn: returns a `ServingInputReceiver`.
          assets_extra: path below `assets.extra` -> the file that is copied there; none by default.
          as_text: whether it is written in text format, by default not.
          checkpoint_path: by default the newest one, or else the source of the warm start.

        Raises:
          ValueError: when there is no receiver, no checkpoint, or no signature.
        """
        if serving_input_receiver_fn is None:
            raise ValueError("An input_receiver_fn must be defined.")
        checkpoint = checkpoint_path or self.latest_checkpoint()
        if checkpoint is None and self._warm_start:
            start = self._warm_start.ckpt_to_initialize_from
            checkpoint = latest_checkpoint(start) if os.path.isdir(start) else start
        checkpoint = checkpoint or self._trained()
        base = Path(os.fsdecode(export_dir_base))
        folder = str(tf.compat.as_str(get_timestamped_export_dir(str(base))))
        base.mkdir(parents=True, exist_ok=True)
        unfinished = Path(base, f"temp-{Path(folder).name}")
        with self._graph(), tf.compat.v1.Session(config=self._session_config) as session:
            spec = serving_graph(self._model, serving_input_receiver_fn)
            serving = serving_of(spec)
            save_model(session, unfinished, checkpoint, serving=serving, as_text=as_text)
        for name, source in (assets_extra or {}).items():
            target = unfinished / "assets.extra" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        unfinished.rename(folder)
        return folder.encode()

    def export_savedmodel(
        self, *args: Any, strip_default_attrs: bool = False, **kwargs: Any
    ) -> bytes:
        """Calls `export_saved_model`, its newer name; `strip_default_attrs` has no effect."""
        return self.export_saved_model(*args, **kwargs)

    def _warm_start_unless(self, checkpoint: str | None) -> None:
        """Warm-starts the model in the default graph, unless it is restored."""
        if self._warm_start and not checkpoint:
            tf.compat.v1.train.warm_start(*self._warm_start)

    @contextmanager
    def _graph(self, device: Any = None) -> Iterator[tf.Graph]:
        device = self._config.device_fn or device
        with tf.Graph().as_default() as graph, tf.compat.v1.device(device):
            tf.compat.v1.set_random_seed(self._config.tf_random_seed)
            tf.compat.v1.train.create_global_step()
            yield graph


def _starting_input(
    scaffold: tf.compat.v1.train.Scaffold, source: TrainingInput | None, saver: Any
) -> tf.compat.v1.train.Scaffold:
    """Returns a scaffold that starts the input in each session, and saves by `saver`."""
    initializers = [] if source is None else [source.initializer]
    local = local_init_op(scaffold, *initializers)
    return tf.compat.v1.train.Scaffold(
        local_init_op=local, saver=saver, copy_from_scaffold=scaffold
    )
