from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from runner.checkpoints.formats.bundle import BundleReader, ObjectBasedReader, object_path
from runner.checkpoints.open import open_reader
from runner.errors import CheckpointError
from tests.conformance.goldens import save_bundle


def _save_parts(prefix: str, shards: int) -> None:
    """A bundle in several shards, of which each holds a tensor of 400 bytes."""
    parts = [
        save_bundle(f"{prefix}_part{shard}", {f"tensor{shard}": tf.ones([100])})
        for shard in range(shards)
    ]
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix)


@pytest.mark.parametrize(
    ("shards", "kept", "message"),
    [
        (1, None, "1 of its 1 data shards are missing\n.*no {}.data-00000-of-00001"),
        (3, None, "1 of its 3 data shards are missing\n.*no {}.data-00000-of-00003"),
        (2, 100, "its data is truncated\n.*take 800 bytes.*hold 500"),
    ],
)
def test_missing_and_truncated_shards_are_found_without_reading_them(
    shards: int, kept: int | None, message: str, tmp_path: Path
) -> None:
    prefix = str(tmp_path / "model.ckpt")
    _save_parts(prefix, shards)
    shard = Path(f"{prefix}.data-00000-of-{shards:05d}")
    if kept is None:
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=message.format(prefix)):
        BundleReader(prefix).spec()


def test_wildcards_in_a_path_are_part_of_it(tmp_path: Path) -> None:
    prefix = str(tmp_path / "lr=[0.1].ckpt")
    _save_parts(prefix, 2)
    reader = BundleReader(prefix)
    spec = reader.spec()
    assert spec.path == prefix
    values = dict(reader.read(list(spec.tensors)))
    assert [*values] == ["tensor0", "tensor1"]
    assert all(np.array_equal(value, np.ones(100)) for value in values.values())


def _write(folder: Path, **parts: object) -> ObjectBasedReader:
    reader = open_reader(str(tf.train.Checkpoint(**parts).save(str(folder / "ckpt"))))
    assert isinstance(reader, ObjectBasedReader)
    return reader


def test_a_variables_own_name_is_an_alias_where_it_has_one_of_its_own(tmp_path: Path) -> None:
    head, one, other = tf.Module(), tf.Variable(1.0, name="same"), tf.Variable(2.0, name="same")
    head.kernel, head.unnamed = tf.Variable([1.0, 2.0], name="dense/kernel"), tf.Variable(1.0)
    spec = _write(tmp_path, head=head, one=one, other=other).spec()
    assert list(spec.tensors) == ["head/kernel", "head/unnamed", "one", "other"]
    assert spec.aliases == {"dense/kernel": "head/kernel"}
    assert spec.step is None, "the counter of saves is no step"


def test_slots_are_called_after_their_variable_and_optimizer(tmp_path: Path) -> None:
    variable = tf.Variable([1.0], name="kernel")
    optimizer = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
    optimizer.minimize(lambda: variable * variable, var_list=[variable])
    spec = _write(tmp_path, model_kernel=variable, optimizer=optimizer).spec()
    assert "model_kernel/optimizer/momentum" in spec.tensors
    assert spec.aliases["kernel/Momentum"] == "model_kernel/optimizer/momentum"


def test_the_step_is_an_attribute_or_the_count_of_the_optimizer(tmp_path: Path) -> None:
    optimizer = keras.optimizers.SGD()
    optimizer.build([keras.Variable(1.0)])
    optimizer.iterations.assign(5)
    older = tf.Module()
    older.iter = tf.Variable(6, dtype=tf.int64)
    step = tf.Variable(7, dtype=tf.int64)
    cases: list[tuple[int, dict[str, Any]]] = [
        (5, {"optimizer": optimizer}),
        (6, {"optimizer": older}),
        (7, {"optimizer": older, "step": step}),
        (7, {"global_step": step}),
    ]
    for number, (expected, parts) in enumerate(cases):
        assert _write(tmp_path / str(number), **parts).spec().step == expected


def test_escaped_characters_are_shown_as_they_were_where_that_is_unique(tmp_path: Path) -> None:
    assert object_path("a.Sb/c..d/.ATTRIBUTES/VARIABLE_VALUE") == "a/b/c.d"
    assert object_path("table/.ATTRIBUTES/table-keys") == "table/table-keys"
    inner = tf.Module()
    inner.b = tf.Variable(1.0)
    outer = tf.Module()
    setattr(outer, "a/b", tf.Variable(2.0))
    outer.a = inner
    reader = _write(tmp_path, model=outer)
    spec = reader.spec()
    name = spec.keys["model/a/b/.ATTRIBUTES/VARIABLE_VALUE"]
    assert spec.find("model/a/b/.ATTRIBUTES/VARIABLE_VALUE") == spec.tensors[name]
    assert {name: float(value) for name, value in reader.read(list(reader.spec().tensors))} == {
        "model/a/b": 1.0,
        "model/a.Sb": 2.0,
    }


def test_keras_exports_are_known_by_the_variables_names(tmp_path: Path) -> None:
    own, copy = ([tf.Variable([1.0], name="net/kernel")] for _ in range(2))
    spec = _write(tmp_path / "tracked", variables=own, _all_variables=copy).spec()
    assert spec.aliases == {"net/kernel": "variables/0"}
    assert "_all_variables/0" not in spec.tensors
    other = [tf.Variable([1.0, 2.0], name="net/bias")]
    spec = _write(tmp_path / "other", variables=own, _all_variables=other).spec()
    assert "_all_variables/0" in spec.tensors
    names = {"net/kernel": [tf.Variable([1.0])], "kernel": [tf.Variable([2.0])]}
    several = {"net/parts": [tf.Variable([3.0]), tf.Variable([4.0])]}
    spec = _write(tmp_path / "collections", **names, **several).spec()
    assert spec.aliases == {"net/kernel": "net/kernel/0", "kernel": "kernel/0"}
    scoped = {"lstm/kernel": [tf.Variable([5.0], name="scope/kernel")]}
    spec = _write(tmp_path / "scoped", **scoped).spec()
    assert [*spec.aliases] == ["scope/kernel", "lstm/kernel"]  # The last one is shown.


def test_an_object_graph_that_ends_in_zeros_is_read_whole(tmp_path: Path) -> None:
    """NumPy's own bytes would lose them."""
    prefix = save_bundle(tmp_path / "model", {"text": b"ends in zeros\x00\x00"})
    ((_, value),) = BundleReader(prefix).read(["text"])
    assert value.item() == b"ends in zeros\x00\x00"


def test_a_damaged_object_graph_is_explained(tmp_path: Path) -> None:
    reader = _write(tmp_path, v=tf.Variable(1.0))
    reader._tensor = lambda key: np.array(b"\xff\xff", dtype=object)  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match="its object graph: "):
        reader.aliases()


def test_one_without_variables_is_refused(tmp_path: Path) -> None:
    tf.saved_model.save(tf.Module(), str(tmp_path / "empty"))
    for file in (tmp_path / "empty" / "variables").iterdir():
        file.unlink()
    with pytest.raises(CheckpointError, match=r"empty/variables/variables cannot be read as"):
        open_reader(str(tmp_path / "empty")).spec()
