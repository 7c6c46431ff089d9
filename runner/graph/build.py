"""Builds the graph of a configuration, by the maker of the key that describes it."""

from __future__ import annotations

import importlib

from runner.config.schema import RunConfig
from runner.graph.built_graph import BuiltGraph, GraphMaker
from runner.graph.hook_entries import CALLBACKS, HOOKS, graph_references
from runner.graph.new_graph import set_threads
from runner.graph.replica import Replica
from runner.system.signals import Interruption

# Key of the configuration -> the maker of its graph. Makers are imported by name, as targets are:
# `runner.estimator` comes after this room, and none is imported without need.
MAKERS = {
    "graph": "runner.graph.user_graph.UserGraph",
    "model_fn": "runner.estimator.model_fn.ModelFnGraph",
    "model": "runner.graph.keras_graph.KerasGraph",
}


def graph_maker(config: RunConfig, *, rereads: bool = False) -> GraphMaker:
    """Returns the maker of a configuration's graphs, see `GraphMaker`; one of their keys is set.

    Raises:
      ConfigError: when a `model_fn` needs the original Estimator, which is not installed.
    """
    key = next(key for key in MAKERS if getattr(config, key))
    module, _, name = MAKERS[key].rpartition(".")
    maker: type[GraphMaker] = getattr(importlib.import_module(module), name)
    return maker(config, rereads=rereads)


def build_graph(
    config: RunConfig,
    split: str,
    *,
    train: bool,
    replica: Replica | None = None,
    rereads: bool = False,
) -> BuiltGraph:
    """Builds the graph in which a run trains and evaluates.

    Args:
      config: the validated configuration.
      split: `train`, `validation` or `test`, the split to evaluate.
      train: whether to build the training step too.
      replica: which copy of the graph this is; by default the only one.
      rereads: see `GraphMaker`.

    Raises:
      ConfigError: when a `_target_` cannot be built or does not keep its contract.
    """
    set_threads(config)
    maker = graph_maker(config, rereads=rereads)
    built = maker.build(split, train=train, replica=replica or Replica())
    if built.training is not None:
        references = graph_references(built.graph, built.variables, built.training)
        HOOKS.check(config.hooks, references)
        CALLBACKS.check(config.callbacks, references)
    Interruption.check_swallowed()
    return built
