"""The rules of a warm start: what is initialised, what is restored, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

import runner
from runner.errors import CheckpointError, ConfigError
from runner.session.session_manager import build_savers, restored_variables

Save = Callable[..., Path]


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


@pytest.fixture(autouse=True)
def _graph() -> Any:
    with tf.Graph().as_default():
        yield


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


def test_init_of_a_later_scaffold_does_not_wipe_an_earlier_restore(save: Save) -> None:
    cnn, lstm = _variables("cnn", "lstm")
    everything = tf.global_variables_initializer()
    manager = _manager(
        [str(save("a", cnn=1.0)), str(save("b", lstm=2.0))],
        [_scaffold(cnn, init_op=cnn.initializer), _scaffold(lstm, init_op=everything)],
        ready_op=_ready(),
    )
    with manager.prepare_session() as session:
        assert session.run([cnn, lstm]) == [1.0, 2.0]


def test_init_fn_of_a_later_scaffold_does_not_wipe_an_earlier_restore(save: Save) -> None:
    cnn, lstm = _variables("cnn", "lstm")

    def wipe(scaffold: tf.train.Scaffold, session: tf.Session) -> None:
        session.run([cnn.initializer, lstm.initializer])

    manager = _manager(
        [str(save("a", cnn=1.0)), None],
        [_scaffold(cnn), _scaffold(lstm, init_fn=wipe)],
        ready_op=_ready(),
    )
    with manager.prepare_session(init_op=tf.global_variables_initializer()) as session:
        assert session.run([cnn, lstm]) == [1.0, -1.0]


def test_init_fn_given_to_prepare_session_runs_before_restores(save: Save) -> None:
    (cnn,) = _variables("cnn")
    seen: list[float] = []
    manager = _manager([str(save("a", cnn=1.0))], [_scaffold(cnn)])
    session = manager.prepare_session(
        init_op=cnn.initializer, init_fn=lambda session: seen.append(session.run(cnn))
    )
    assert seen == [-1.0]
    assert session.run(cnn) == 1.0
    session.close()


def test_init_feeds_are_used() -> None:
    value = tf.placeholder(tf.float32, [])
    main, part = tf.Variable(value, name="main"), tf.Variable(value, name="part")
    scaffold = _scaffold(part, init_op=part.initializer, init_feed_dict={value: 4.0})
    manager = _manager([None], [scaffold], ready_op=_ready())
    with manager.prepare_session(init_op=main.initializer, init_feed_dict={value: 3.0}) as session:
        assert session.run([main, part]) == [3.0, 4.0]


def test_a_shared_init_op_runs_once(save: Save) -> None:
    count = tf.get_variable("count", initializer=0.0)
    (cnn,) = _variables("cnn")
    with tf.control_dependencies([tf.group(count.initializer, cnn.initializer)]):
        init = tf.group(tf.assign_add(count, 1.0))
    manager = _manager([str(save("a", cnn=1.0))], [_scaffold(cnn, init_op=init)], ready_op=_ready())
    draws: list[float] = []
    with manager.prepare_session(
        init_op=init, init_fn=lambda session: draws.append(session.run(count))
    ):
        assert draws == [1.0]


def test_local_init_runs_after_restores(save: Save) -> None:
    (cnn,) = _variables("cnn")
    copy = tf.get_local_variable("copy", initializer=cnn.read_value() * 10)
    manager = _manager(
        [str(save("a", cnn=1.0))],
        [_scaffold(cnn)],
        local_init_op=copy.initializer,
        ready_op=_ready(),
    )
    with manager.prepare_session(init_op=tf.global_variables_initializer()) as session:
        assert session.run(copy) == 10.0


def test_local_init_of_a_scaffold_runs_after_restores(save: Save) -> None:
    (cnn,) = _variables("cnn")
    copy = tf.get_local_variable("copy", initializer=cnn.read_value() * 10)
    scaffold = _scaffold(cnn, local_init_op=copy.initializer)
    manager = _manager([str(save("a", cnn=1.0))], [scaffold], ready_op=_ready())
    with manager.prepare_session(init_op=cnn.initializer) as session:
        assert session.run(copy) == 10.0


def test_local_init_of_a_scaffold_runs_in_a_session_that_resumes_too(save: Save) -> None:
    cnn, head = _variables("cnn", "head")
    copy = tf.get_local_variable("copy", initializer=cnn.read_value() * 10)
    manager = _manager(
        [str(save("a", cnn=1.0))],
        [_scaffold(cnn, local_init_op=copy.initializer)],
        ready_op=_ready(),
    )
    own = save("own", cnn=5.0, head=6.0)
    with manager.prepare_session(saver=tf.train.Saver(), checkpoint_dir=str(own)) as session:
        assert session.run([cnn, head, copy]) == [5.0, 6.0, 50.0]
    session, resumed = manager.recover_session("", tf.train.Saver(), str(own))
    assert resumed
    assert session.run(copy) == 50.0


def test_ready_check_names_a_variable_that_nothing_gives(save: Save) -> None:
    cnn, _ = _variables("cnn", "forgotten")
    manager = _manager([str(save("a", cnn=1.0))], [_scaffold(cnn)], ready_op=_ready())
    with pytest.raises(RuntimeError, match="forgotten"):
        manager.prepare_session()


def test_own_checkpoint_beats_warm_start(save: Save, tmp_path: Path) -> None:
    cnn, head = _variables("cnn", "head")
    own = save("own", cnn=5.0, head=6.0)
    called: list[str] = []
    scaffold = _scaffold(
        cnn, init_op=cnn.initializer, init_fn=lambda scaffold, session: called.append("scaffold")
    )
    manager = _manager([str(tmp_path / "gone")], [scaffold], ready_op=_ready())
    with manager.prepare_session(
        init_op=tf.global_variables_initializer(),
        saver=tf.train.Saver(),
        checkpoint_dir=str(own),
        init_fn=lambda session: called.append("given"),
    ) as session:
        assert session.run([cnn, head]) == [5.0, 6.0]
    assert called == []


def test_own_checkpoint_may_be_named_by_its_prefix(save: Save) -> None:
    cnn, head = _variables("cnn", "head")
    own = save("own", cnn=5.0, head=6.0)
    manager = _manager([str(save("a", cnn=1.0))], [_scaffold(cnn)], ready_op=_ready())
    with manager.prepare_session(
        saver=tf.train.Saver(), checkpoint_filename_with_path=str(own / "model.ckpt")
    ) as session:
        assert session.run([cnn, head]) == [5.0, 6.0]


def test_own_directory_without_checkpoint_is_a_fresh_start(save: Save, tmp_path: Path) -> None:
    (cnn,) = _variables("cnn")
    (tmp_path / "own").mkdir()
    manager = _manager([str(save("a", cnn=1.0))], [_scaffold(cnn)], ready_op=_ready())
    with manager.prepare_session(
        saver=tf.train.Saver(), checkpoint_dir=str(tmp_path / "own")
    ) as session:
        assert session.run(cnn) == 1.0


def test_own_directory_whose_checkpoint_is_gone_is_refused(save: Save) -> None:
    (cnn,) = _variables("cnn")
    own = save("own", cnn=5.0)
    (own / "model.ckpt.index").unlink()
    manager = _manager([str(save("a", cnn=1.0))], [_scaffold(cnn)])
    with pytest.raises(CheckpointError, match="no such checkpoint is there"):
        manager.prepare_session(saver=tf.train.Saver(), checkpoint_dir=str(own))


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


def test_lists_of_different_length_are_refused(save: Save) -> None:
    (cnn,) = _variables("cnn")
    with pytest.raises(ConfigError, match="1 scaffolds and 2 checkpoint directories"):
        _manager(["a", "b"], [_scaffold(cnn)])
    with pytest.raises(ConfigError, match="1 scaffolds and 0 checkpoint directories"):
        _manager(None, [_scaffold(cnn)])


def test_every_missing_checkpoint_is_reported(tmp_path: Path) -> None:
    cnn, lstm = _variables("cnn", "lstm")
    (tmp_path / "empty").mkdir()
    manager = _manager(
        [str(tmp_path / "nowhere"), str(tmp_path / "empty")], [_scaffold(cnn), _scaffold(lstm)]
    )
    with pytest.raises(CheckpointError) as caught:
        manager.prepare_session(init_op=tf.global_variables_initializer())
    assert "there is no checkpoint at" in str(caught.value)
    assert "holds no checkpoint" in str(caught.value)


def test_an_optional_checkpoint_may_be_missing(save: Save, tmp_path: Path) -> None:
    cnn, lstm = _variables("cnn", "lstm")
    manager = _manager(
        [str(tmp_path / "nowhere"), str(save("b", lstm=2.0))],
        [_scaffold(cnn, optional=True), _scaffold(lstm)],
        ready_op=_ready(),
    )
    with manager.prepare_session(init_op=tf.global_variables_initializer()) as session:
        assert session.run([cnn, lstm]) == [-1.0, 2.0]


def test_an_optional_checkpoint_that_is_there_is_restored(save: Save) -> None:
    (cnn,) = _variables("cnn")
    manager = _manager([str(save("a", cnn=1.0))], [_scaffold(cnn, optional=True)])
    with manager.prepare_session() as session:
        assert session.run(cnn) == 1.0


def test_two_savers_may_not_restore_one_variable(save: Save) -> None:
    cnn, lstm = _variables("cnn", "lstm")
    manager = _manager(
        [str(save("a", cnn=1.0, lstm=1.0)), str(save("b", lstm=2.0))],
        [_scaffold(cnn, lstm, name="first"), _scaffold(lstm, name="second")],
    )
    with pytest.raises(
        ConfigError, match=r"lstm is restored by scaffold first from .* and by scaffold second"
    ):
        manager.prepare_session(init_op=tf.global_variables_initializer())


def test_savers_may_overlap_where_only_one_restores(save: Save) -> None:
    (cnn,) = _variables("cnn")
    manager = _manager([str(save("a", cnn=1.0)), None], [_scaffold(cnn), _scaffold(cnn)])
    with manager.prepare_session() as session:
        assert session.run(cnn) == 1.0


def test_a_scaffold_without_a_saver_is_refused(save: Save) -> None:
    _variables("cnn")
    manager = _manager([str(save("a", cnn=1.0))], [tf.train.Scaffold()])
    with pytest.raises(ConfigError, match="a scaffold has no saver"):
        manager.prepare_session()


def test_a_checkpoint_without_the_savers_tensors_is_refused(save: Save) -> None:
    (cnn,) = _variables("cnn")
    manager = _manager([str(save("a", other=1.0))], [_scaffold(cnn, name="features")])
    with pytest.raises(CheckpointError, match=r"scaffold features cannot be restored from .*a/"):
        manager.prepare_session()


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


def test_graph_and_target_are_used() -> None:
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.get_variable("v", initializer=1.0)
    server = tf.train.Server.create_local_server()
    manager = _manager(graph=graph, target=server.target)
    session = manager.prepare_session(init_op=variable.initializer)
    assert session.graph is graph
    assert session.sess_str == server.target.encode()
    session.close()


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


def test_build_savers_builds_deferred_savers() -> None:
    (cnn,) = _variables("cnn")
    scaffold = runner.Scaffold(saver=tf.train.Saver(defer_build=True))
    build_savers([scaffold])
    assert restored_variables(scaffold.saver) == {cnn.op.name}


def test_restored_variables_follow_sharded_savers_and_reference_variables() -> None:
    resource = tf.get_variable("resource", initializer=1.0)
    reference = tf.get_variable("reference", initializer=1.0, use_resource=False)
    with tf.device("/cpu:0"):
        saver = tf.train.Saver([resource, reference], sharded=True)
    assert restored_variables(saver) == {"resource", "reference"}


def _saved(folder: Path) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("w", initializer=7.0)
        session.run(variable.initializer)
        tf.compat.v1.train.Saver([variable]).save(session, str(folder / "model.ckpt"))


def test_a_graph_that_is_not_the_default_one_and_a_path_object(tmp_path: Path) -> None:
    _saved(tmp_path)
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.compat.v1.get_variable("w", initializer=1.0)
        init = tf.compat.v1.global_variables_initializer()
        scaffold = tf.compat.v1.train.Scaffold(saver=tf.compat.v1.train.Saver([variable]))
    manager = _manager([tmp_path], [scaffold], graph=graph)
    with manager.prepare_session("", init_op=init) as session:
        assert session.run(variable) == 7


@pytest.mark.parametrize(
    ("directories", "scaffolds", "message"),
    [
        ("features", [], r"checkpoint directories are 'features'\n.*list"),
        (Path("features"), [], r"checkpoint directories are PosixPath\('features'\)\n.*list"),
        ([], 3, r"the scaffolds are 3\n.*list"),
        (["features"], ["saver"], r"'saver' is not a tf\.compat\.v1\.train\.Scaffold\n.*wrap"),
    ],
)
def test_sources_that_are_not_lists(directories: Any, scaffolds: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _manager(directories, scaffolds, graph=tf.Graph())


def test_a_scaffold_has_a_name_and_a_flag_besides() -> None:
    saver = tf.train.Saver(_variables("v"))
    scaffold = runner.Scaffold(saver=saver, name="cnn", optional=True)
    assert (scaffold.saver, scaffold.name, scaffold.optional) == (saver, "cnn", True)
    assert (runner.Scaffold().name, runner.Scaffold().optional) == ("", False)
