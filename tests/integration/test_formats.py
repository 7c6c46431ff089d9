"""Checkpoints of every format are sources that a composed configuration can name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from runner.config.composition import compose_experiment
from runner.config.schema import RunConfig
from runner.config.validation import validate
from runner.errors import CheckpointError, PlanError
from runner.graph.build import build_graph
from runner.graph.built_graph import BuiltGraph
from runner.planning.plan import make_plan
from runner.restoration.restorer import Restorer
from runner.tracking import RunStore, open_store
from runner.training.run_sources import Sources
from tests.conformance.goldens import STEP, make, tensors
from tests.support.composing import composing

NORM = ("gamma", "beta", "moving_mean", "moving_variance")


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """The tiny experiment with a scaffold `norm` whose tensors every golden holds."""
    scaffold = "{variables: {include: ['body/norm/*']}, rename: {body/norm/: norm/}}"
    with composing(tmp_path_factory.mktemp("conf")):
        given = [f"++scaffolds.norm={scaffold}", "++scaffolds.norm.checkpoint=unused"]
        return validate(compose_experiment("tiny", [*given, "tracking.uri=null"]))


def starting_from(config: RunConfig, checkpoint: str, which: str | None = None) -> RunConfig:
    """Returns the configuration with another checkpoint."""
    norm = replace(config.scaffolds["norm"], checkpoint=checkpoint, which=which)
    return replace(config, scaffolds={"norm": norm})


@pytest.fixture(scope="module")
def built(composed: RunConfig) -> BuiltGraph:
    return build_graph(composed, "validation", train=True)


def _restored(config: RunConfig, built: BuiltGraph) -> dict[str, Any]:
    """Returns the values of the layer after a warm start, and the step that was found."""
    sources = Sources(config, open_store(config.tracking, {}))
    located = sources.expected()
    plan = make_plan(built.specs, config.scaffolds, located)
    plan.require_sound()
    with built.graph.as_default(), tf.compat.v1.Session() as session:
        restorer = Restorer(plan, built.variables, sources.open, verify=True)
        restorer.warm_start(session, None, None, init_fn=None)
        values: dict[str, Any] = session.run(
            {name: built.variables[f"body/norm/{name}"] for name in NORM}
        )
    source = located.specs["norm"]
    assert source is not None
    return {**values, "step": source.step}


# One of each reader; that all goldens are read alike is tests/conformance/test_formats.py's.
READERS = (
    *("bundle", "bundle_partitioned", "object_based", "saved_model_of_tf2", "v1_sharded"),
    *("keras_weights", "keras_h5_of_keras2", "keras_archive"),
    *("safetensors_shards", "npz", "npy_record"),
)


@pytest.mark.parametrize("name", READERS)
def test_a_run_starts_from_it(
    name: str, tmp_path: Path, composed: RunConfig, built: BuiltGraph
) -> None:
    golden = make(name, tmp_path)
    values = _restored(starting_from(composed, golden.path), built)
    assert values["step"] == golden.step
    for variable in NORM:
        assert np.array_equal(values[variable], tensors()[f"norm/{variable}"]), variable


def test_a_step_of_a_directory_is_a_source(
    tmp_path: Path, composed: RunConfig, built: BuiltGraph
) -> None:
    make("bundle", tmp_path)
    config = starting_from(composed, str(tmp_path), str(STEP))
    assert _restored(config, built)["step"] == STEP
    with pytest.raises(PlanError, match="holds no checkpoint of step 99"):
        _restored(starting_from(composed, str(tmp_path), "99"), built)


def test_what_was_pinned_is_not_exchanged_on_the_way(tmp_path: Path, composed: RunConfig) -> None:
    golden = make("npz", tmp_path)
    sources = Sources(starting_from(composed, golden.path), RunStore())
    sources.expected()
    sources.open("norm")
    make("npz", tmp_path, tensors(1.0))
    with pytest.raises(CheckpointError, match="is not the checkpoint that was pinned"):
        sources.open("norm")
