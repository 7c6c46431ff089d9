"""Warm start, resumption and recovery of the monitored session."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import runner
from runner.errors import CheckpointError, ConfigError


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


def test_own_checkpoint_beats_the_warm_start(pretrained: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    assert _train(2, pretrained, own) == ([2, 3.0 + 2, -1.0 + 2], ["init_fn"])
    # It does not even need its sources any more.
    assert _train(5, tmp_path / "gone", own) == ([5, 3.0 + 5, -1.0 + 5], [])


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


def test_a_creator_makes_a_new_session_and_can_resume_from_a_named_checkpoint(
    pretrained: Path, tmp_path: Path
) -> None:
    with tf.Graph().as_default():
        model = _Model()
        sources: dict[str, Any] = {
            "pretrained_scaffolds": [model.pretrained()],
            "pretrained_checkpoint_dirs": [pretrained],
        }
        creator = runner.ChiefSessionCreator(**sources)
        first = creator.create_session()
        first.close()
        with creator.create_session() as second:
            assert second is not first
            assert second.run(model.cnn) == 3.0
            second.run(model.train_op)
            saved = creator.scaffold.saver.save(second, str(tmp_path / "named"))
        resuming = runner.ChiefSessionCreator(
            creator.scaffold, checkpoint_filename_with_path=saved, **sources
        )
        with resuming.create_session() as session:
            assert session.run([model.step, model.cnn]) == [1, 4.0]


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


@contextmanager
def imported_anew(absent: Collection[str]) -> Iterator[None]:
    """Lets the block import runner again, and none of the absent packages."""

    def known() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] in {"runner", *absent}]

    before = {name: sys.modules.pop(name) for name in known()}
    nothing: dict[str, Any] = dict.fromkeys(absent)
    sys.modules.update(nothing)
    try:
        yield
    finally:
        for name in known():
            del sys.modules[name]
        sys.modules.update(before)


def test_the_ten_lines_of_the_docstring_run_without_hydra_and_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    doc = inspect.getdoc(runner) or ""
    with tf.Graph().as_default(), tf.Session() as session:
        cnn = tf.get_variable("cnn", initializer=[1.5, 1.6, 1.7])
        session.run(cnn.initializer)
        tf.train.Saver({"features/cnn": cnn}).save(session, "features/model.ckpt")
    with imported_anew(absent=("hydra", "mlflow")):
        exec(doc[doc.index("import tensorflow") :], {})
    trained, head = (tf.train.load_variable("model", name) for name in ("cnn", "head"))
    assert tf.train.load_variable("model", "global_step") == 100
    assert abs(trained * head - 1).max() < 0.1
    assert trained.min() > 1, "trained from random values"


def test_a_warm_start_without_a_run_needs_neither_hydra_nor_mlflow(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", w=np.ones(2, np.float32))
    scaffold = {"variables": {"include": ["w"]}, "checkpoint": tmp_path / "w.npz"}
    weight = tf.Variable([0.0, 0.0])
    with imported_anew(absent=("hydra", "mlflow")):
        importlib.import_module("runner").warm_start({"w": weight}, {"all": scaffold})
    assert weight.numpy().tolist() == [1.0, 1.0]


def test_the_public_names_are_listed() -> None:
    assert set(runner.__all__) <= set(dir(runner))
    assert "__doc__" in dir(runner)
