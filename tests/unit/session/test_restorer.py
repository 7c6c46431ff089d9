"""Session managers with a restorer: several sources, restored as one plan says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from runner.config.choices import Initialize
from runner.errors import CheckpointError
from runner.restoration.restorer import Restorer
from runner.session.monitored_session import ChiefSessionCreator
from runner.session.session_manager import SessionManager
from tests.support.restoring import SAVE, Case, save_bundle

pytestmark = pytest.mark.usefixtures("graph")


@pytest.fixture
def source(tmp_path: Path) -> Callable[[str, float], str]:
    """Saves a scalar `value` as a source of a name: a file for `npz`, a bundle for others."""

    def save(name: str, value: float) -> str:
        return SAVE.get(name, save_bundle)(tmp_path / name, {"value": np.array(value, np.float32)})

    return save


def restorer_of(paths: dict[str, str], variables: dict[str, tf.Variable]) -> Restorer:
    """Gives each variable the tensor `value` of the source of its name, if there is one."""
    case = Case(**paths)
    for name, variable in variables.items():
        case.take(variable, (name, "value") if name in paths else None)
    return case.restorer(initialize=Initialize.remaining, verify=True)


def test_a_restorer_restores_after_every_init(source: Callable[[str, float], str]) -> None:
    variables = {name: tf.get_variable(name, initializer=-1.0) for name in ("cnn", "npz", "head")}
    restorer = restorer_of({"cnn": source("cnn", 1.0), "npz": source("npz", 2.0)}, variables)
    manager = SessionManager(ready_op=tf.report_uninitialized_variables(), restorer=restorer)
    initializers = [variable.initializer for variable in variables.values()]
    init_op = tf.group(*initializers)
    with manager.prepare_session(
        init_op=init_op, init_fn=lambda session: session.run(initializers)
    ) as session:
        values = session.run(variables)
    assert values == {"cnn": 1.0, "npz": 2.0, "head": -1.0}


def test_a_checkpoint_of_the_models_own_beats_the_restorer(
    source: Callable[[str, float], str], tmp_path: Path
) -> None:
    variable = tf.get_variable("cnn", initializer=-1.0)
    restorer = restorer_of({"cnn": source("cnn", 1.0)}, {"cnn": variable})
    creator = ChiefSessionCreator(
        tf.train.Scaffold(init_op=tf.no_op()),
        checkpoint_dir=str(tmp_path / "own"),
        restorer=restorer,
    )
    with creator.create_session() as session:
        assert session.run(variable) == 1.0
        session.run(variable.initializer)
        (tmp_path / "own").mkdir()
        creator.scaffold.saver.save(session, str(tmp_path / "own" / "model"))
    with creator.create_session() as session:
        assert session.run(variable) == -1.0


def test_no_half_restored_session_is_left_behind(
    source: Callable[[str, float], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = tf.get_variable("cnn", initializer=-1.0)
    path = source("cnn", 1.0)
    restorer = restorer_of({"cnn": path}, {"cnn": variable})
    data = Path(f"{path}.data-00000-of-00001")
    content = bytearray(data.read_bytes())
    content[content.find(np.float32(1.0).tobytes())] ^= 1
    data.write_bytes(content)
    sessions: list[tf.Session] = []
    restore = restorer.restore

    def keep_session(session: tf.Session) -> None:
        sessions.append(session)
        restore(session)

    monkeypatch.setattr(restorer, "restore", keep_session)
    with pytest.raises(CheckpointError, match=r"scaffolds\.cnn: .*model"):
        SessionManager(restorer=restorer).prepare_session()
    with pytest.raises(RuntimeError, match="closed Session"):
        sessions[0].run(variable)


@pytest.mark.parametrize("given", ["another", "none"])
def test_the_restorer_initialises_once(source: Callable[[str, float], str], given: str) -> None:
    runs: list[int] = []

    def count() -> float:
        runs.append(1)
        return -1.0

    initial = tf.py_func(count, [], tf.double)
    variables = {
        "cnn": tf.get_variable("cnn", initializer=-1.0),
        "head": tf.get_variable("head", initializer=tf.cast(tf.reshape(initial, ()), tf.float32)),
    }
    restorer = restorer_of({"cnn": source("cnn", 1.0)}, variables)
    init = {"another": tf.no_op(), "none": None}[given]
    with SessionManager(restorer=restorer).prepare_session(init_op=init) as session:
        assert session.run(variables) == {"cnn": 1.0, "head": -1.0}
    assert len(runs) == 1


@pytest.mark.parametrize("given", ["another", "none"])
def test_the_restorer_initialises_with_what_the_init_op_is_fed(
    source: Callable[[str, float], str], given: str
) -> None:
    fed = tf.placeholder(tf.float32, ())
    variables = {
        "cnn": tf.get_variable("cnn", initializer=-1.0),
        "head": tf.get_variable("head", initializer=fed),
    }
    restorer = restorer_of({"cnn": source("cnn", 1.0)}, variables)
    init = {"another": tf.group(variables["head"].initializer), "none": None}[given]
    manager = SessionManager(restorer=restorer)
    with manager.prepare_session(init_op=init, init_feed_dict={fed: 5.0}) as session:
        assert session.run(variables) == {"cnn": 1.0, "head": 5.0}
