"""The rules of a warm start: what is initialised, what is restored, and in which order."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

import runner
from runner.checkpoints.open import open_reader
from runner.errors import CheckpointError, ConfigError

Save = Callable[..., Path]
pytestmark = pytest.mark.usefixtures("graph")


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Saves a checkpoint `name` with the given scalars, and returns its directory."""

    def save_values(name: str, **values: float) -> Path:
        with tf.Graph().as_default(), tf.Session() as session:
            variables = {
                key: tf.get_variable(key, initializer=each) for key, each in values.items()
            }
            session.run(tf.global_variables_initializer())
            saver = tf.train.Saver(variables, save_relative_paths=True)
            saver.save(session, str(tmp_path / name / "model.ckpt"), write_meta_graph=False)
        return tmp_path / name

    return save_values


def _variables(*names: str) -> list[tf.Variable]:
    return [tf.get_variable(name, initializer=-1.0) for name in names]


def _scaffold(*variables: tf.Variable, **kwargs: Any) -> tf.train.Scaffold:
    return runner.Scaffold(saver=tf.train.Saver(list(variables)), **kwargs)


def _manager(
    checkpoint_dirs: Any = None, scaffolds: Any = None, **kwargs: Any
) -> runner.SessionManager:
    return runner.SessionManager(checkpoint_dirs=checkpoint_dirs, scaffolds=scaffolds, **kwargs)


def _ready() -> tf.Tensor:
    return tf.report_uninitialized_variables()


def test_each_scaffold_restores_its_own_subset(save: Save) -> None:
    cnn, lstm, head = _variables("cnn", "lstm", "head")
    manager = _manager(
        [str(save("a", cnn=1.0, lstm=9.0)), str(save("b", lstm=2.0, cnn=9.0))],
        [_scaffold(cnn), _scaffold(lstm)],
        ready_op=_ready(),
    )
    with manager.prepare_session(init_op=tf.global_variables_initializer()) as session:
        assert session.run([cnn, lstm, head]) == [1.0, 2.0, -1.0]


def test_inits_of_a_later_scaffold_do_not_wipe_an_earlier_restore(save: Save) -> None:
    cnn, lstm, head = _variables("cnn", "lstm", "head")
    everything = tf.global_variables_initializer()

    def wipe(scaffold: tf.train.Scaffold, session: tf.Session) -> None:
        session.run(everything)

    manager = _manager(
        [str(save("a", cnn=1.0)), str(save("b", lstm=2.0)), None],
        [
            _scaffold(cnn, init_op=cnn.initializer),
            _scaffold(lstm, init_op=everything),
            _scaffold(head, init_fn=wipe),
        ],
        ready_op=_ready(),
    )
    with manager.prepare_session() as session:
        assert session.run([cnn, lstm, head]) == [1.0, 2.0, -1.0]


def test_init_feeds_are_used() -> None:
    value = tf.placeholder(tf.float32, [])
    main, part = tf.Variable(value, name="main"), tf.Variable(value, name="part")
    scaffold = _scaffold(part, init_op=part.initializer, init_feed_dict={value: 4.0})
    manager = _manager([None], [scaffold], ready_op=_ready())
    with manager.prepare_session(init_op=main.initializer, init_feed_dict={value: 3.0}) as session:
        assert session.run([main, part]) == [3.0, 4.0]


def test_a_shared_init_op_runs_once_and_then_the_given_init_fn(save: Save) -> None:
    count = tf.get_variable("count", initializer=0.0)
    (cnn,) = _variables("cnn")
    with tf.control_dependencies([tf.group(count.initializer, cnn.initializer)]):
        init = tf.group(tf.assign_add(count, 1.0))
    manager = _manager([str(save("a", cnn=1.0))], [_scaffold(cnn, init_op=init)], ready_op=_ready())
    seen: list[list[float]] = []
    with manager.prepare_session(
        init_op=init, init_fn=lambda session: seen.append(session.run([count, cnn]))
    ) as session:
        assert seen == [[1.0, -1.0]]
        assert session.run(cnn) == 1.0


def test_local_inits_run_after_restores_and_in_a_session_that_resumes_too(save: Save) -> None:
    cnn, head = _variables("cnn", "head")
    given, own = (
        tf.get_local_variable(name, initializer=cnn.read_value() * 10) for name in ("given", "own")
    )
    manager = _manager(
        [str(save("a", cnn=1.0))],
        [_scaffold(cnn, local_init_op=own.initializer)],
        local_init_op=given.initializer,
        ready_op=_ready(),
    )
    saver, init = tf.train.Saver([cnn, head]), tf.global_variables_initializer()
    saved = str(save("own", cnn=5.0, head=6.0))
    with manager.prepare_session(init_op=init) as session:
        assert session.run([given, own]) == [10.0, 10.0]
    with manager.prepare_session(saver=saver, checkpoint_dir=saved) as session:
        assert session.run([cnn, head, given, own]) == [5.0, 6.0, 50.0, 50.0]
    session, resumed = manager.recover_session("", saver, saved)
    assert resumed
    assert session.run([given, own]) == [50.0, 50.0]


def test_ready_check_names_a_variable_that_nothing_gives(save: Save) -> None:
    cnn, _ = _variables("cnn", "forgotten")
    manager = _manager([str(save("a", cnn=1.0))], [_scaffold(cnn)], ready_op=_ready())
    with pytest.raises(RuntimeError, match="forgotten"):
        manager.prepare_session()


def test_a_directory_whose_checkpoint_is_gone_is_refused(save: Save) -> None:
    (cnn,) = _variables("cnn")
    own = save("own", cnn=5.0)
    (own / "model.ckpt.index").unlink()
    manager = _manager([str(save("a", cnn=1.0))], [_scaffold(cnn)])
    with pytest.raises(CheckpointError, match="no such checkpoint is there") as caught:
        manager.prepare_session(saver=tf.train.Saver(), checkpoint_dir=str(own))
    assert isinstance(caught.value, ValueError), "as TensorFlow's"
    with pytest.raises(ValueError, match="no such checkpoint is there"):
        _manager([own], [_scaffold(cnn, optional=True)]).prepare_session()


def test_a_checkpoint_that_is_gone_from_where_only_tensorflow_reads_is_refused(save: Save) -> None:
    (cnn,) = _variables("cnn")
    own = save("own", cnn=5.0)
    tf.io.gfile.makedirs("ram://own")
    for part in own.iterdir():
        tf.io.gfile.copy(str(part), f"ram://own/{part.name}")
    state = (own / "checkpoint").read_text().replace(f"{own}/", "")
    with tf.io.gfile.GFile("ram://own/checkpoint", "w") as file:
        file.write(state)
    saver = tf.train.Saver()
    try:
        manager = _manager([str(save("a", cnn=1.0))], [_scaffold(cnn)])
        session = manager.prepare_session(saver=saver, checkpoint_dir="ram://own")
        assert session.run(cnn) == 5
        tf.io.gfile.remove("ram://own/model.ckpt.index")
        with pytest.raises(CheckpointError, match="no such checkpoint is there"):
            manager.prepare_session(saver=saver, checkpoint_dir="ram://own")
    finally:
        tf.io.gfile.rmtree("ram://own")


def test_warm_start_follows_a_wait_for_an_own_checkpoint_in_vain(
    save: Save, tmp_path: Path
) -> None:
    (cnn,) = _variables("cnn")
    manager = _manager([str(save("a", cnn=1.0))], [_scaffold(cnn)], ready_op=_ready())
    with manager.prepare_session(
        init_op=cnn.initializer,
        saver=tf.train.Saver(),
        checkpoint_dir=str(tmp_path / "own"),
        wait_for_checkpoint=True,
        max_wait_secs=0,
    ) as session:
        assert session.run(cnn) == 1.0


def test_every_missing_checkpoint_is_reported(tmp_path: Path) -> None:
    cnn, lstm = _variables("cnn", "lstm")
    (tmp_path / "empty").mkdir()
    manager = _manager(
        [str(tmp_path / "nowhere"), str(tmp_path / "empty")], [_scaffold(cnn), _scaffold(lstm)]
    )
    with pytest.raises(CheckpointError) as caught:
        manager.prepare_session(init_op=tf.global_variables_initializer())
    assert "pretrained_checkpoint_dirs[0]: there is no checkpoint at" in str(caught.value)
    assert "holds no checkpoint" in str(caught.value)
    remedies = {problem.remedy for problem in caught.value.problems}
    assert remedies == {"correct the path, or declare it: runner.Scaffold(optional=True)"}


def test_an_optional_checkpoint_may_be_missing(save: Save, tmp_path: Path) -> None:
    cnn, lstm = _variables("cnn", "lstm")
    manager = _manager(
        [tmp_path / "nowhere", save("b", lstm=2.0)],
        [_scaffold(cnn, optional=True), _scaffold(lstm, optional=True)],
        ready_op=_ready(),
    )
    with manager.prepare_session(init_op=tf.global_variables_initializer()) as session:
        assert session.run([cnn, lstm]) == [-1.0, 2.0]


def test_two_savers_may_not_restore_one_variable(save: Save) -> None:
    cnn, lstm = _variables("cnn", "lstm")
    manager = _manager(
        [str(save("a", cnn=1.0, lstm=1.0)), str(save("b", lstm=2.0))],
        [_scaffold(cnn, lstm, name="first"), _scaffold(lstm, name="second")],
    )
    with pytest.raises(
        ConfigError, match=r"lstm is restored by scaffolds\.first and scaffolds\.second"
    ):
        manager.prepare_session(init_op=tf.global_variables_initializer())


def test_savers_may_overlap_where_only_one_restores(save: Save) -> None:
    (cnn,) = _variables("cnn")
    manager = _manager([str(save("a", cnn=1.0)), None], [_scaffold(cnn), _scaffold(cnn)])
    with manager.prepare_session() as session:
        assert session.run(cnn) == 1.0


def test_a_saver_that_is_missing_or_does_not_fit_is_refused(save: Save) -> None:
    (cnn,) = _variables("cnn")
    other = str(save("a", other=1.0))
    with pytest.raises(ConfigError, match=r"pretrained_scaffolds\[0\] has no saver"):
        _manager([other], [tf.train.Scaffold()]).prepare_session()
    manager = _manager([other], [_scaffold(cnn, name="features")])
    with pytest.raises(CheckpointError, match=r"scaffolds\.features: no tensor 'cnn' .*\n.*a/"):
        manager.prepare_session()


def test_a_saver_of_keras_variables_is_told_from_a_missing_tensor(save: Save) -> None:
    layer = keras.layers.Dense(2)
    layer.build((None, 2))
    source = save("a", cnn=1.0)
    for variables in (layer.weights, {"cnn": layer.kernel}):
        scaffold = runner.Scaffold(saver=tf.train.Saver(variables))
        with pytest.raises(CheckpointError, match=r"a keras\.Variable, .*variable\.value"):
            _manager([source], [scaffold]).prepare_session()


VALUE = np.arange(6, dtype=np.float32).reshape(2, 3)


def _write(kind: str, folder: Path) -> Path:
    """Writes VALUE as `cnn` in a format and returns what a source may be."""
    if kind == "npz":
        np.savez(folder / "cnn.npz", cnn=VALUE)
        return folder / "cnn.npz"
    with tf.Graph().as_default(), tf.Session() as session:
        cnn = tf.get_variable("cnn", initializer=VALUE)
        session.run(cnn.initializer)
        if kind == "by object":
            return Path(tf2.train.Checkpoint(part=cnn).write(str(folder / "by_object")))
        if kind == "SavedModel":
            inputs = {"x": tf.placeholder(tf.float32)}
            tf.saved_model.simple_save(session, str(folder / "exported"), inputs, {"cnn": cnn})
            return folder / "exported"
        (folder / "run" / "checkpoints").mkdir(parents=True)
        tf.train.Saver().save(session, str(folder / "run/checkpoints/model.ckpt"))
    (folder / "run" / "run.json").write_text("{}")
    return folder / "run"


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("kind", ["npz", "by object", "SavedModel", "run directory"])
def test_any_format_is_restored_by_the_names_of_the_saver(
    tmp_path: Path, kind: str, partitioned: bool
) -> None:
    axes = tf.fixed_size_partitioner(2, axis=1) if partitioned else None
    parts = tf.get_variable("mine", [2, 3], partitioner=axes)
    (other,) = _variables("other")
    source, wrong = _write(kind, tmp_path), tf.get_variable("wrong", [3, 2])
    saver = tf.train.Saver({"cnn": parts})
    table = {"cnm": other, "cnn": wrong}
    scaffolds = [runner.Scaffold(saver=each) for each in (saver, tf.train.Saver(table))]
    value, init = tf.convert_to_tensor(parts), tf.global_variables_initializer()
    tf.get_default_graph().finalize()
    with _manager([source], scaffolds[:1]).prepare_session(init_op=init) as session:
        assert session.run(value).tolist() == VALUE.tolist()
    with pytest.raises(CheckpointError) as caught:
        _manager([source], scaffolds[1:]).prepare_session(init_op=init)
    missing, shapes = sorted(caught.value.problems, key=str)
    assert missing.state == "scaffolds.0: no tensor 'cnm' for the variable other"
    assert missing.choices[0] == "cnn"
    assert shapes.state.startswith("scaffolds.0: wrong cannot be restored from ")
    assert "which is float32 [2, 3] in" in shapes.state
    assert shapes.cause == "the variable is float32 [3, 2]"


@pytest.mark.parametrize("kind", ["npz", "SavedModel"])
def test_a_shape_alone_that_does_not_fit_is_named(tmp_path: Path, kind: str) -> None:
    cnn = tf.get_variable("cnn", [3, 2], initializer=tf.zeros_initializer())
    source = _write(kind, tmp_path)
    manager = _manager([source], [_scaffold(cnn)])
    with pytest.raises(CheckpointError, match=r"cause: the variable is float32 \[3, 2\]"):
        manager.prepare_session(init_op=cnn.initializer)
    reshaping = tf.train.Scaffold(saver=tf.train.Saver([cnn], reshape=True))
    manager = _manager([source], [reshaping])
    with manager.prepare_session(init_op=cnn.initializer) as session:
        assert session.run(cnn).tolist() == VALUE.reshape(3, 2).tolist()


def test_a_reshape_that_cannot_be_and_damage_are_named(save: Save) -> None:
    larger = tf.get_variable("cnn", [2])
    reshaping = tf.train.Scaffold(saver=tf.train.Saver([larger], reshape=True))
    source = save("a", cnn=1.0)
    expected = r"cnn, which is float32 \[\] in .*\n  cause: \[\] cannot be reshaped to \[2\]"
    with pytest.raises(CheckpointError, match=expected):
        _manager([source], [reshaping]).prepare_session(init_op=larger.initializer)
    (cnn,) = _variables("b")
    (source / "model.ckpt.data-00000-of-00001").write_bytes(b"\0\0\0\1")
    damaged = tf.train.Scaffold(saver=tf.train.Saver({"cnn": cnn}))
    with pytest.raises(CheckpointError, match=r"tensor cnn: .*[Cc]hecksum"):
        _manager([source], [damaged]).prepare_session(init_op=cnn.initializer)


def test_mlflow_is_not_a_source_of_a_session() -> None:
    (cnn,) = _variables("cnn")
    with pytest.raises(CheckpointError, match="is in MLflow, and no tracking store is given"):
        _manager(["models:/cnn@champion"], [_scaffold(cnn)]).prepare_session()


@pytest.mark.parametrize("finalized", [False, True])
def test_a_plain_scaffold_is_accepted(save: Save, finalized: bool) -> None:
    cnn, _ = _variables("cnn", "head")
    scaffold = tf.train.Scaffold(saver=tf.train.Saver([cnn]))
    init, ready = tf.global_variables_initializer(), _ready()
    if finalized:
        scaffold.finalize()
    manager = _manager([str(save("a", cnn=1.0))], [scaffold], ready_op=ready)
    with manager.prepare_session(init_op=init) as session:
        assert session.run(cnn) == 1.0


def test_without_sources_it_is_tensorflows_own() -> None:
    (cnn,) = _variables("cnn")
    with pytest.raises(RuntimeError, match="no init_op"):
        _manager().prepare_session("")
    with _manager(ready_op=_ready()).prepare_session("", cnn.initializer, None) as session:
        assert session.run(cnn) == -1.0


def test_graph_and_target_are_used(save: Save) -> None:
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.get_variable("v", initializer=1.0)
        scaffold = _scaffold(variable)
    server = tf.train.Server.create_local_server()
    manager = _manager([save("a", v=7.0)], [scaffold], graph=graph, target=server.target)
    with manager.prepare_session(init_op=variable.initializer) as session:
        assert session.graph is graph
        assert session.sess_str == server.target.encode()
        assert session.run(variable) == 7.0


def test_prepare_session_adds_nothing_to_a_finalised_graph(save: Save) -> None:
    (cnn,) = _variables("cnn")
    scaffold = _scaffold(cnn)
    manager = _manager([str(save("a", cnn=1.0))], [scaffold], ready_op=_ready())
    init = tf.global_variables_initializer()
    tf.get_default_graph().finalize()
    sessions = [manager.prepare_session(init_op=init) for _ in range(2)]
    assert sessions[0] is not sessions[1]
    assert [session.run(cnn) for session in sessions] == [1.0, 1.0]
    for session in sessions:
        session.close()


def test_savers_that_are_sharded_or_hold_reference_variables_restore_any_format(
    save: Save, tmp_path: Path
) -> None:
    resource = tf.get_variable("resource", initializer=1.0)
    reference = tf.get_variable("reference", initializer=1.0, use_resource=False)
    with tf.device("/cpu:0"):
        scaffold = tf.train.Scaffold(saver=tf.train.Saver([resource, reference], sharded=True))
    np.savez(tmp_path / "a.npz", resource=np.float32(2), reference=np.float32(3))
    init = tf.global_variables_initializer()
    for source in (save("a", resource=2.0, reference=3.0), tmp_path / "a.npz"):
        with _manager([source], [scaffold]).prepare_session(init_op=init) as session:
            assert session.run([resource, reference]) == [2.0, 3.0]
    manager = _manager([source] * 2, [scaffold, _scaffold(reference)])
    with pytest.raises(
        ConfigError, match=r"reference is restored by scaffolds\.0 and scaffolds\.1"
    ):
        manager.prepare_session(init_op=init)


@pytest.mark.parametrize("kind", ["bundle", "npz"])
def test_a_table_in_a_saver_is_restored_beside_its_variables(tmp_path: Path, kind: str) -> None:
    cnn = tf.get_variable("cnn", initializer=0.0)
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1, checkpoint=True)
    found = table.lookup(tf.constant([5, 6, 7], tf.int64))
    insert = table.insert(tf.constant([5, 6], tf.int64), tf.constant([1, 2], tf.int64))
    saver = tf.train.Saver()
    scaffold = tf.train.Scaffold(saver=saver)
    with tf.Session() as session:
        session.run([cnn.assign(5.0).op, insert])
        path = saver.save(session, str(tmp_path / "model"), write_meta_graph=False)
    if kind == "npz":
        reader = open_reader(path)
        path = str(tmp_path / "model.npz")
        np.savez(path, **dict[str, Any](reader.read(list(reader.spec().tensors))))
    with _manager([path], [scaffold]).prepare_session(init_op=cnn.initializer) as session:
        assert session.run(cnn) == 5.0
        assert session.run(found).tolist() == [1, 2, -1]


def test_a_saver_of_an_imported_graph_has_no_list_of_variables(save: Save, tmp_path: Path) -> None:
    with tf.Graph().as_default():
        saver = tf.train.Saver([*_variables("cnn"), *_variables("lstm")])
        tf.train.export_meta_graph(str(tmp_path / "graph"), saver_def=saver.as_saver_def())
    scaffold = tf.train.Scaffold(saver=tf.train.import_meta_graph(str(tmp_path / "graph")))
    cnn, lstm = tf.global_variables()
    manager = _manager([save("a", cnn=1.0, lstm=2.0)], [scaffold], ready_op=_ready())
    with manager.prepare_session() as session:
        assert session.run([cnn, lstm]) == [1.0, 2.0]


def test_a_saver_may_have_the_keys_of_an_object_based_checkpoint(tmp_path: Path) -> None:
    path = _write("by object", tmp_path)
    cnn = tf.get_variable("mine", [2, 3])
    saver = tf.train.Saver({"part/.ATTRIBUTES/VARIABLE_VALUE": cnn})
    manager = _manager([path], [tf.train.Scaffold(saver=saver)])
    with manager.prepare_session(init_op=cnn.initializer) as session:
        assert session.run(cnn).tolist() == VALUE.tolist()


@pytest.mark.parametrize(
    ("directories", "scaffolds", "message"),
    [
        (["a", "b"], [tf.train.Scaffold()], "1 scaffolds and 2 checkpoint directories"),
        ("features", [], "0 scaffolds and 1 checkpoint directories"),
        (["features"], 3, r"3 is not a tf\.compat\.v1\.train\.Scaffold"),
        (["features"], ["saver"], r"'saver' is not a tf\.compat\.v1\.train\.Scaffold\n.*\n.*wrap"),
    ],
)
def test_sources_that_do_not_fit_are_refused(
    directories: Any, scaffolds: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        _manager(directories, scaffolds, graph=tf.Graph())


@pytest.mark.parametrize("kind", [str, Path, os.fsencode], ids=["str", "Path", "bytes"])
def test_one_path_and_one_scaffold_are_lists_of_one(save: Save, kind: Any) -> None:
    (cnn,) = _variables("cnn")
    path, scaffold = kind(save("a", cnn=2.0)), _scaffold(cnn)
    for sources in ((path, scaffold), ([path], scaffold), (path, [scaffold])):
        manager = _manager(*sources)
        with manager.prepare_session(init_op=cnn.initializer) as session:
            assert session.run(cnn) == 2.0
