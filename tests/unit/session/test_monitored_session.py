"""Warm start, resumption and recovery of the monitored session."""

from __future__ import annotations

import hashlib
import inspect
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

import runner
from runner.errors import CheckpointError, ConfigError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    """A directory with three checkpoints of the tensor `cnn`; the newest holds 3."""
    directory = tmp_path / "pretrained"
    with tf.Graph().as_default(), tf.Session() as session:
        value = tf.placeholder(tf.float32, [])
        cnn = tf.get_variable("cnn", initializer=0.0)
        assign = tf.assign(cnn, value)
        saver = tf.train.Saver(max_to_keep=3)
        for step in (1, 2, 3):
            session.run(assign, {value: step})
            saver.save(session, str(directory / "model.ckpt"), global_step=step)
    return directory


class _Model:
    """A graph of `cnn`, `head` and a step that adds 1 to both."""

    def __init__(self) -> None:
        self.step = tf.train.get_or_create_global_step()
        self.cnn = tf.get_variable("cnn", initializer=-1.0)
        self.head = tf.get_variable("head", initializer=-1.0)
        self.inits: list[str] = []
        self.cnn_after, self.head_after = (
            tf.assign_add(each, 1.0).read_value() for each in (self.cnn, self.head)
        )
        with tf.control_dependencies([self.cnn_after, self.head_after]):
            self.train_op = tf.assign_add(self.step, 1).read_value()

    def pretrained(self) -> tf.train.Scaffold:
        return tf.train.Scaffold(saver=tf.train.Saver([self.cnn]), init_fn=self._note)

    def _note(self, scaffold: tf.train.Scaffold, session: tf.Session) -> None:
        self.inits.append("init_fn")


def _files(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def _train(steps: int, pretrained: Path, own: Path | None, **kwargs: Any) -> tuple[Any, list[str]]:
    """Trains to the step and returns (step, cnn, head) and what init_fn noted."""
    with tf.Graph().as_default():
        model = _Model()
        with runner.MonitoredTrainingSession(
            model_checkpoint_dir=str(own) if own else None,
            pretrained_scaffolds=[model.pretrained()],
            pretrained_checkpoint_dirs=[str(pretrained)],
            hooks=[tf.train.StopAtStepHook(last_step=steps)],
            log_step_count_steps=None,
            save_summaries_steps=None,
            **kwargs,
        ) as session:
            while not session.should_stop():
                values = session.run((model.train_op, model.cnn_after, model.head_after))
        return list(values), model.inits


def test_a_fresh_start_restores_the_newest_pretrained_checkpoint(pretrained: Path) -> None:
    values, inits = _train(2, pretrained, own=None)
    assert values == [2, 3.0 + 2, -1.0 + 2]
    assert inits == ["init_fn"]


def test_own_checkpoint_beats_the_warm_start(pretrained: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    _train(2, pretrained, own)
    values, inits = _train(5, pretrained, own)
    assert values == [5, 3.0 + 5, -1.0 + 5]
    assert inits == []


def test_a_resumed_run_does_not_need_its_sources(pretrained: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    _train(2, pretrained, own)
    values, _ = _train(3, tmp_path / "gone", own)
    assert values == [3, 6.0, 2.0]


def test_pretrained_directories_are_left_as_they_are(pretrained: Path, tmp_path: Path) -> None:
    before = _files(pretrained)
    own = tmp_path / "own"
    for steps in (3, 6):
        with tf.Graph().as_default():
            model = _Model()
            keep_one = tf.train.Scaffold(saver=tf.train.Saver(max_to_keep=1))
            source = tf.train.Scaffold(saver=tf.train.Saver([model.cnn], max_to_keep=1))
            with runner.MonitoredTrainingSession(
                model_checkpoint_dir=str(own),
                model_scaffold=keep_one,
                pretrained_scaffolds=[source],
                pretrained_checkpoint_dirs=[str(pretrained)],
                hooks=[tf.train.StopAtStepHook(last_step=steps)],
                save_checkpoint_steps=1,
            ) as session:
                while not session.should_stop():
                    session.run(model.train_op)
    assert _files(pretrained) == before
    assert [path.name for path in own.glob("*.index")] == ["model.ckpt-6.index"]


class _AbortOnce(tf.train.SessionRunHook):
    """Raises AbortedError after a step, once, and remembers the sessions it was given."""

    def __init__(self, step: tf.Tensor, at: int) -> None:
        self._step, self._at = step, at
        self.sessions: list[tf.Session] = []
        self.first_values: list[Any] = []

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self.sessions.append(session)
        self.first_values.append(session.run(tf.global_variables()))

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs(self._step)

    def after_run(
        self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues
    ) -> None:
        if run_values.results == self._at and len(self.sessions) == 1:
            raise tf.errors.AbortedError(None, None, "the worker was preempted")


@pytest.mark.parametrize(
    ("own", "recovered"),
    [
        # From the checkpoint of step 4: saved every 2 steps, aborted after the fifth.
        (True, [4, 3.0 + 4, -1.0 + 4]),
        # Nothing to resume from: the warm start is made again.
        (False, [0, 3.0, -1.0]),
    ],
)
def test_recovery_makes_a_new_session(
    pretrained: Path, tmp_path: Path, own: bool, recovered: list[float]
) -> None:
    with tf.Graph().as_default():
        model = _Model()
        abort = _AbortOnce(model.train_op, at=5)
        with runner.MonitoredTrainingSession(
            model_checkpoint_dir=str(tmp_path / "own") if own else None,
            pretrained_scaffolds=[model.pretrained()],
            pretrained_checkpoint_dirs=[str(pretrained)],
            hooks=[tf.train.StopAtStepHook(last_step=7), abort],
            save_checkpoint_steps=2,
            log_step_count_steps=None,
            save_summaries_steps=None,
        ) as session:
            while not session.should_stop():
                session.run(model.train_op)
    first, second = abort.sessions
    assert first is not second
    assert abort.first_values == [[0, 3.0, -1.0], recovered]
    assert model.inits == ["init_fn"] * (1 if own else 2)


def test_every_session_of_a_creator_is_new(pretrained: Path) -> None:
    with tf.Graph().as_default():
        model = _Model()
        creator = runner.ChiefSessionCreator(
            pretrained_scaffolds=[model.pretrained()], pretrained_checkpoint_dirs=[str(pretrained)]
        )
        first = creator.create_session()
        first.close()
        with creator.create_session() as second:
            assert second is not first
            assert second.run(model.cnn) == 3.0


def test_the_creator_can_resume_from_a_named_checkpoint(pretrained: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    _train(2, pretrained, own)
    with tf.Graph().as_default():
        model = _Model()
        creator = runner.ChiefSessionCreator(
            checkpoint_filename_with_path=tf.train.latest_checkpoint(str(own)),
            pretrained_scaffolds=[model.pretrained()],
            pretrained_checkpoint_dirs=[str(pretrained)],
        )
        with creator.create_session() as session:
            assert session.run([model.step, model.cnn]) == [2, 5.0]


def test_lists_of_different_length_are_refused_before_any_session() -> None:
    with (
        tf.Graph().as_default(),
        pytest.raises(ConfigError, match="1 scaffolds and 0 checkpoint directories"),
    ):
        runner.MonitoredTrainingSession(pretrained_scaffolds=[_Model().pretrained()])
    with pytest.raises(ConfigError, match="0 scaffolds and 1 checkpoint directories"):
        runner.ChiefSessionCreator(pretrained_checkpoint_dirs=["a"])


def test_a_missing_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*nowhere"):
        _train(1, tmp_path / "nowhere", own=None)


def test_a_missing_optional_checkpoint_is_none(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        model = _Model()
        source = runner.Scaffold(saver=tf.train.Saver([model.cnn]), optional=True)
        with runner.MonitoredTrainingSession(
            pretrained_scaffolds=[source], pretrained_checkpoint_dirs=[str(tmp_path / "nowhere")]
        ) as session:
            assert session.run(model.cnn) == -1.0


def test_savers_that_were_deferred_are_built(pretrained: Path) -> None:
    with tf.Graph().as_default():
        cnn = tf.get_variable("cnn", initializer=-1.0)
        source = runner.Scaffold(saver=tf.train.Saver(defer_build=True))
        with runner.MonitoredTrainingSession(
            pretrained_scaffolds=[source], pretrained_checkpoint_dirs=[str(pretrained)]
        ) as session:
            assert session.run(cnn) == 3.0


def _supervisor(
    model: _Model, pretrained: list[Any], graph: tf.Graph | None = None, **kwargs: Any
) -> runner.Supervisor:
    scaffolds = [tf.train.Scaffold(saver=tf.train.Saver([model.head])), model.pretrained()]
    with tf.Graph().as_default() if graph else nullcontext():
        return runner.Supervisor(
            graph,
            save_model_secs=0,
            save_summaries_secs=0,
            pretrained_checkpoint_dirs=pretrained,
            pretrained_scaffolds=scaffolds,
            **kwargs,
        )


def test_a_supervisor_restores_several_checkpoints_and_an_own_one_beats_them(
    pretrained: Path, tmp_path: Path
) -> None:
    for expected in (3.0, 30.0):
        with tf.Graph().as_default() as graph:
            model = _Model()
            change = tf.assign(model.cnn, 30.0)
            own = str(tmp_path / "own")
            supervisor = _supervisor(model, [None, pretrained], graph, logdir=own)
            with supervisor.managed_session() as session:
                assert type(session) is runner.CachedSession
                assert session.run([model.cnn, model.head, model.step]) == [expected, -1.0, 0]
                session.run(change)
                supervisor.saver.save(session, supervisor.save_path)


def test_our_session_manager_serves_tensorflows_supervisor(pretrained: Path) -> None:
    with tf.Graph().as_default() as graph:
        model = _Model()
        manager = runner.SessionManager(
            graph=graph,
            ready_op=tf.report_uninitialized_variables(),
            checkpoint_dirs=[str(pretrained)],
            scaffolds=[model.pretrained()],
        )
        supervisor = tf.train.Supervisor(
            session_manager=manager, init_op=tf.global_variables_initializer()
        )
        assert supervisor.session_manager is manager
        with supervisor.managed_session() as session:
            assert session.run(model.cnn) == 3.0


def test_a_supervisor_refuses_sources_that_cannot_be(pretrained: Path, tmp_path: Path) -> None:
    with tf.Graph().as_default():
        model = _Model()
        with pytest.raises(ConfigError, match="2 scaffolds and 0 checkpoint directories"):
            _supervisor(model, [])
        with pytest.raises(ConfigError, match="a session manager and pretrained scaffolds"):
            _supervisor(model, [None, pretrained], session_manager=runner.SessionManager())
    with tf.Graph().as_default():
        supervisor = _supervisor(_Model(), [None, tmp_path / "nowhere"])
        with pytest.raises(CheckpointError, match="nowhere"), supervisor.managed_session():
            pass


def test_the_two_names_of_an_argument_exclude_each_other() -> None:
    with tf.Graph().as_default():
        _Model()
        with pytest.raises(ConfigError, match="checkpoint_dir and model_checkpoint_dir"):
            runner.MonitoredTrainingSession(checkpoint_dir="a", model_checkpoint_dir="b")
        with pytest.raises(ConfigError, match="scaffold and model_scaffold"):
            runner.MonitoredTrainingSession(
                scaffold=tf.train.Scaffold(), model_scaffold=tf.train.Scaffold()
            )


def test_tensorflows_arguments_do_what_they_do(tmp_path: Path) -> None:
    """Summaries, step counter and checkpoints, under TensorFlow's own names."""
    with tf.Graph().as_default():
        model = _Model()
        tf.summary.scalar("value", model.head)
        with runner.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path / "own"),
            summary_dir=str(tmp_path / "summaries"),
            hooks=[tf.train.StopAtStepHook(last_step=4)],
            save_checkpoint_steps=2,
            save_summaries_steps=1,
            log_step_count_steps=2,
            save_graph_def=False,
        ) as session:
            while not session.should_stop():
                session.run(model.train_op)
    assert not list((tmp_path / "own").glob("graph.pbtxt"))
    steps = [int(path.stem.rpartition("-")[2]) for path in (tmp_path / "own").glob("*.index")]
    assert max(steps) == 4
    (events,) = (tmp_path / "summaries").glob("events.*")
    tags = {
        value.tag
        for event in tf.train.summary_iterator(str(events))
        for value in event.summary.value
    }
    assert tags == {"value", "global_step/sec"}


def test_the_ten_lines_of_the_docstring_run_without_hydra_and_mlflow(tmp_path: Path) -> None:
    """As they stand, in a process of their own."""
    doc = inspect.getdoc(runner) or ""
    lines = doc[doc.index("import tensorflow") :]
    program = f"""
import sys
import tensorflow.compat.v1 as tf
with tf.Graph().as_default(), tf.Session() as session:
    cnn = tf.get_variable("cnn", initializer=[1.5, 1.6, 1.7])
    session.run(cnn.initializer)
    tf.train.Saver({{"features/cnn": cnn}}).save(session, "features/model.ckpt")
{lines}
    cnn = tf.train.load_variable("model", "cnn")
assert tf.train.load_variable("model", "global_step") == 100
assert abs(cnn * tf.train.load_variable("model", "head") - 1).max() < 0.1, cnn
assert cnn.min() > 1, "trained from random values"
loaded = [name for name in ("hydra", "omegaconf", "mlflow") if name in sys.modules]
assert not loaded, loaded
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_public_names_are_listed() -> None:
    assert set(runner.__all__) <= set(dir(runner))
    assert "__doc__" in dir(runner)
