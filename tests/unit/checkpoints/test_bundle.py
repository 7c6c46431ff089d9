from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from runner.checkpoints.bundle import BundleReader, ObjectBasedReader, object_path
from runner.checkpoints.open import open_checkpoint
from runner.errors import CheckpointError


def _save_parts(prefix: str, shards: int) -> None:
    """A bundle in several shards, of which each holds a tensor of 400 bytes."""
    parts = [f"{prefix}_part{shard}" for shard in range(shards)]
    for shard, part in enumerate(parts):
        tf.raw_ops.SaveV2(
            prefix=part,
            tensor_names=[f"tensor{shard}"],
            shape_and_slices=[""],
            tensors=[tf.ones([100])],
        )
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix)


def test_an_index_without_data_is_refused(tmp_path: Path) -> None:
    prefix = str(tmp_path / "model.ckpt")
    _save_parts(prefix, 1)
    Path(f"{prefix}.data-00000-of-00001").unlink()
    with pytest.raises(CheckpointError, match=r"an index without data\n.*no .*data-00000-of-00001"):
        BundleReader(prefix).spec()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    prefix = str(tmp_path / "model.ckpt")
    _save_parts(prefix, 3)
    Path(f"{prefix}.data-00001-of-00003").unlink()
    with pytest.raises(CheckpointError, match="1 of its 3 data shards are missing") as caught:
        BundleReader(prefix).spec()
    assert f"there is no {prefix}.data-00001-of-00003" in str(caught.value)


def test_a_truncated_shard_is_found_without_reading_it(tmp_path: Path) -> None:
    prefix = str(tmp_path / "model.ckpt")
    _save_parts(prefix, 2)
    shard = Path(f"{prefix}.data-00001-of-00002")
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"its data is truncated\n.*take 800 bytes.*hold 500"):
        BundleReader(prefix).spec()


def test_wildcards_in_a_path_are_explained(tmp_path: Path) -> None:
    prefix = str(tmp_path / "lr=[0.1].ckpt")
    _save_parts(prefix, 1)
    with pytest.raises(CheckpointError, match=r"TensorFlow\n.*takes \*, \? and \[ in a path"):
        BundleReader(prefix).spec()


def _write(folder: Path, **parts: object) -> ObjectBasedReader:
    reader = open_checkpoint(str(tf.train.Checkpoint(**parts).save(str(folder / "ckpt"))))
    assert isinstance(reader, ObjectBasedReader)
    return reader


def test_a_variable_is_known_by_path_and_by_its_own_name(tmp_path: Path) -> None:
    head = tf.Module()
    head.kernel = tf.Variable([1.0, 2.0], name="dense/kernel")
    reader = _write(tmp_path, head=head)
    spec = reader.spec()
    assert list(spec.tensors) == ["head/kernel"]
    assert spec.aliases == {"dense/kernel": "head/kernel"}
    ((_, value),) = reader.read(["head/kernel"])
    np.testing.assert_array_equal(value, [1.0, 2.0])


def test_unnamed_variables_have_no_alias(tmp_path: Path) -> None:
    spec = _write(tmp_path, one=tf.Variable(1.0), other=tf.Variable(2.0)).spec()
    assert list(spec.tensors) == ["one", "other"]
    assert spec.aliases == {}


def test_a_name_of_two_variables_is_no_alias(tmp_path: Path) -> None:
    one, other = tf.Variable(1.0, name="kernel"), tf.Variable(2.0, name="kernel")
    assert _write(tmp_path, one=one, other=other).spec().aliases == {}


def test_slots_are_called_after_their_variable_and_optimizer(tmp_path: Path) -> None:
    variable = tf.Variable([1.0], name="kernel")
    optimizer = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
    optimizer.minimize(lambda: variable * variable, var_list=[variable])
    spec = _write(tmp_path, model_kernel=variable, optimizer=optimizer).spec()
    assert "model_kernel/optimizer/momentum" in spec.tensors
    assert spec.aliases["kernel/Momentum"] == "model_kernel/optimizer/momentum"


@pytest.mark.parametrize("name", ["step", "global_step"])
def test_the_step_is_an_attribute(name: str, tmp_path: Path) -> None:
    assert _write(tmp_path, **{name: tf.Variable(7, dtype=tf.int64)}).spec().step == 7


def test_without_one_the_optimizer_tells_the_step(tmp_path: Path) -> None:
    optimizer = keras.optimizers.SGD()
    optimizer.build([keras.Variable(1.0)])
    optimizer.iterations.assign(5)
    assert _write(tmp_path / "3", optimizer=optimizer).spec().step == 5
    older = tf.Module()
    older.iter = tf.Variable(6, dtype=tf.int64)
    assert _write(tmp_path / "2", optimizer=older).spec().step == 6
    both = {"optimizer": older, "step": tf.Variable(8, dtype=tf.int64)}
    assert _write(tmp_path / "both", **both).spec().step == 8


def test_the_save_counter_is_no_step(tmp_path: Path) -> None:
    spec = _write(tmp_path, weights=tf.Variable([1.0])).spec()
    assert spec.step is None
    assert "save_counter" not in spec.tensors


def test_escaped_characters_are_shown_as_they_were() -> None:
    assert object_path("a.Sb/c..d/.ATTRIBUTES/VARIABLE_VALUE") == "a/b/c.d"
    assert object_path("table/.ATTRIBUTES/table-keys") == "table/table-keys"


def test_paths_that_only_escapes_tell_apart_stay_apart(tmp_path: Path) -> None:
    inner = tf.Module()
    inner.b = tf.Variable(1.0)
    outer = tf.Module()
    setattr(outer, "a/b", tf.Variable(2.0))
    outer.a = inner
    reader = _write(tmp_path, model=outer)
    assert {name: float(value) for name, value in reader.read(list(reader.spec().tensors))} == {
        "model/a/b": 1.0,
        "model/a.Sb": 2.0,
    }


def test_keras_exports_are_known_by_the_variables_names(tmp_path: Path) -> None:
    graph_copy = tf.Module()
    graph_copy.variables_list = [tf.Variable([1.0], name="net/kernel")]
    graph_copy._all_variables = [tf.Variable([1.0], name="net/kernel")]
    spec = _write(
        tmp_path,
        variables=graph_copy.variables_list,
        _all_variables=graph_copy._all_variables,
    ).spec()
    assert spec.aliases == {"net/kernel": "variables/0"}


def test_an_object_graph_that_ends_in_zeros_is_read_whole(tmp_path: Path) -> None:
    """NumPy's own bytes would lose them."""
    prefix = str(tmp_path / "model")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable(
            "text", initializer=tf.constant(b"ends in zeros\x00\x00")
        )
        session.run(variable.initializer)
        tf.compat.v1.train.Saver([variable]).save(session, prefix)
    ((_, value),) = BundleReader(prefix).read(["text"])
    assert value.item() == b"ends in zeros\x00\x00"


def test_a_damaged_object_graph_is_explained(tmp_path: Path) -> None:
    prefix = tf.train.Checkpoint(v=tf.Variable(1.0)).write(str(tmp_path / "model"))
    reader = ObjectBasedReader(prefix)
    reader._tensor = lambda key: np.array(b"\xff\xff", dtype=object)  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match="its object graph: "):
        reader.aliases()


def test_one_without_variables_is_refused(tmp_path: Path) -> None:
    tf.saved_model.save(tf.Module(), str(tmp_path / "empty"))
    for file in (tmp_path / "empty" / "variables").iterdir():
        file.unlink()
    with pytest.raises(CheckpointError, match=r"the SavedModel .*empty holds no variables"):
        open_checkpoint(str(tmp_path / "empty")).spec()
