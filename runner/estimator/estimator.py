"""The original Estimator, which may start from several checkpoints as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from runner.errors import ConfigError
from runner.graph.session_variables import name_variables, variable_specs
from runner.graph.user_graph import of_the_model
from runner.internals.original_estimator import original_class, original_estimator, train_in
from runner.planning.report import text
from runner.planning.sources import open_sources, read_warm_start
from runner.planning.weights_layout import plan_located
from runner.restoration.restorer import Restorer
from runner.session.monitored_session import MonitoredTrainingSession

_ORIGINAL: Any = original_estimator().Estimator
train_in(MonitoredTrainingSession)


class Estimator(_ORIGINAL):
    """`tf.estimator.Estimator`, which may start from several checkpoints.

    Args:
      model_fn: takes `features` and any of `labels`, `mode`, `params`, `config`; returns an
        `EstimatorSpec`.
      model_dir: the directory of checkpoints; by default `config.model_dir`, or else a temporary
        directory.
      config: a `RunConfig`, by default `RunConfig()`.
      params: what `model_fn` and `input_fn`s get as `params`, an empty dict by default.
      warm_start_from: what an Estimator without a checkpoint starts from: as in TensorFlow a
        checkpoint, a SavedModel or `WarmStartSettings`; or several checkpoints, as the `scaffolds`
        of `runner.warm_start`. Their plan is logged. None by default.

    Raises:
      ValueError: when an argument is not valid.
      ConfigError: when a scaffold is not valid, or there is a distribution strategy too.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Any = None,
        config: Any = None,
        params: Any = None,
        warm_start_from: Any = None,
    ) -> None:
        self._scaffolds: Any = None
        if isinstance(warm_start_from, Mapping):
            self._scaffolds, self._rules = read_warm_start(warm_start_from)
            warm_start_from = None
        super().__init__(model_fn, model_dir, config, params, warm_start_from)
        frozen = [name for name, part in (self._scaffolds or {}).items() if not part.trainable]
        if frozen:
            state = f"scaffolds.{frozen[0]}.trainable is false"
            raise ConfigError.of(state, "the model_fn's train_op decides what trains", "delete it")
        if self._scaffolds and (self.config.train_distribute or self.config.eval_distribute):
            state = "several checkpoints and a distribution strategy are given"
            raise ConfigError.of(state, "a strategy holds copies of variables", "leave one out")

    def _assert_members_are_not_overridden(self) -> None:
        """Allows a subclass no other members than the original does."""
        original_class()._assert_members_are_not_overridden(Estimator, self)

    def _call_model_fn(self, features: Any, labels: Any, mode: str, config: Any) -> Any:
        spec = super()._call_model_fn(features, labels, mode, config)
        if self._scaffolds is None or self.latest_checkpoint() is not None:
            return spec
        read = spec.loss if spec.loss is not None else tf.group(tf.nest.flatten(spec.predictions))
        restorer, init = self._restorer(read), spec.scaffold.init_fn

        def init_fn(_: Any, session: tf.compat.v1.Session) -> None:
            if init is not None:
                init(session)
            restorer.restore(session)

        started = tf.compat.v1.train.Scaffold(copy_from_scaffold=spec.scaffold, init_fn=init_fn)
        return spec._replace(scaffold=started)

    def _restorer(self, read: tf.Tensor | tf.Operation) -> Restorer:
        """Plans what the scaffolds restore in the default graph.

        Args:
          read: reads the variables of the model.

        Raises:
          PlanError: when the plan has problems.
        """
        variables = name_variables(tf.compat.v1.global_variables())
        specs = variable_specs(variables, of_the_model(variables, read), policies={}, training=None)
        located, sources = open_sources(self._scaffolds, None)
        rules = self._rules
        plan = plan_located(specs, self._scaffolds, located, rules=rules)
        tf.compat.v1.logging.info("Warm-starting from %s\n%s", ", ".join(sources), text(plan))
        return Restorer(plan, variables, lambda name: sources[name].reader, verify=rules.verify)
