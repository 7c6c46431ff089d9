"""The signature of an exported model, its inputs and outputs by name, and its predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from runner.errors import ConfigError
from runner.graph.built_graph import PredictionGraph, ServingGraph
from runner.graph.contracts import features_of
from runner.internals.keras import flatten_with_path
from runner.session.session_manager import PLACED_SOFTLY

SIGNATURE = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
# The endpoint of a model that Keras exports, which `keras.layers.TFSMLayer` calls.
ENDPOINT = "serve"


def named(prefix: str, structure: Any) -> dict[str, Any]:
    """Returns a structure's leaves by name: the keys of dictionaries, nested ones joined by `_`.

    A leaf outside of any dictionary is called `prefix`, or `prefix_0` and so on for several.
    """
    keyed = structure if isinstance(structure, Mapping) else {prefix: structure}
    by_path = {"_".join(map(str, path)): leaf for path, leaf in flatten_with_path(keyed)}
    leaves = tf.nest.flatten(structure)
    several = keyed is structure or len(leaves) > 1
    return by_path if several and len(by_path) == len(leaves) else numbered(prefix, leaves)


def first_example(features: Any, initializer: tf.Operation) -> dict[str, Any]:
    """Returns the first example of the default graph's features by name, as arrays.

    `initializer` starts the input that they come from.
    """
    with tf.compat.v1.Session() as session:
        session.run([initializer, tf.compat.v1.tables_initializer()])
        batch = session.run(named("features", features))
    return {name: value[:1] for name, value in batch.items()}


def numbered(prefix: str, leaves: Sequence[Any]) -> dict[str, Any]:
    """Names leaves whose keys are ambiguous, such as `a_b` beside `b` in `a`."""
    if len(leaves) == 1:
        return {prefix: leaves[0]}
    return {f"{prefix}_{index}": leaf for index, leaf in enumerate(leaves)}


def fed_predictions(
    served: ServingGraph,
    features: Callable[[], tf.data.Dataset],
    explaining: Callable[[], AbstractContextManager[object]],
) -> PredictionGraph:
    """Returns the graph that predicts by the signature of a served model, which is fed."""
    signature = served.signatures[SIGNATURE]
    names = {name: info.name for name, info in signature.inputs.items()}
    return PredictionGraph(
        graph=served.graph,
        outputs={
            name: served.graph.get_tensor_by_name(info.name)
            for name, info in signature.outputs.items()
        },
        restorer=served.restorer,
        initializers=[served.main_op],
        feeds=_feeds(names, features),
        explaining=explaining,
    )


def save_model(
    session: tf.compat.v1.Session,
    folder: Path,
    checkpoint: str,
    *,
    serving: ServingGraph,
) -> None:
    """Writes a SavedModel of a graph's signatures, with the values of a checkpoint.

    Args:
      session: a session of the graph, which is the default one.
      folder: where to write it.
      checkpoint: the prefix of the checkpoint.
      serving: the graph.

    Raises:
      ConfigError: when the checkpoint lacks a variable of the graph.
    """
    try:
        serving.restorer.restore(session, checkpoint)
    except (tf.errors.NotFoundError, ValueError) as error:
        raise ConfigError.of(
            f"{checkpoint} lacks a variable of the graph for mode export",
            str(error).splitlines()[0],
            "make the same variables in every mode",
        ) from error
    builder = tf.compat.v1.saved_model.Builder(str(folder))
    builder.add_meta_graph_and_variables(
        session,
        [tf.saved_model.SERVING],
        dict(serving.signatures),
        assets_collection=tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.ASSET_FILEPATHS),
        main_op=serving.main_op,
        clear_devices=True,
        saver=serving.saver,
        strip_default_attrs=True,
    )
    builder.save()


def predictions_of(graph: PredictionGraph, checkpoint: str) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Yields what a graph predicts, batch by batch, in a session of its own."""
    with (
        graph.graph.as_default(),
        graph.explaining(),
        tf.compat.v1.Session(config=PLACED_SOFTLY) as session,
    ):
        graph.restorer.restore(session, checkpoint)
        for operation in graph.initializers:
            session.run(operation)
        for feeds in graph.feeds:
            try:
                yield session.run(dict(graph.outputs), feeds)
            except tf.errors.OutOfRangeError:
                break


def _feeds(
    inputs: Mapping[str, str], features: Callable[[], tf.data.Dataset]
) -> Iterator[dict[str, Any]]:
    """Yields what to feed for each batch of features, to tensors that inputs are the names of."""
    with tf.Graph().as_default() as graph:
        batches = tf.compat.v1.data.make_initializable_iterator(features())
        element = named(next(iter(inputs)), features_of(batches.get_next()))
        begin = [batches.initializer, tf.compat.v1.tables_initializer()]
    if element.keys() != inputs.keys():
        raise ConfigError.of(
            f"predict: the features are {', '.join(element)}",
            f"the graph for mode export takes {', '.join(inputs)}",
            "give the features these names",
        )
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(begin)
        while True:
            try:
                arrays = session.run(element)
            except tf.errors.OutOfRangeError:
                return
            yield {inputs[name]: array for name, array in arrays.items()}
