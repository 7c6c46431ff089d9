from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from runner.checkpoints.locate import latest_checkpoint, require_checkpoint
from runner.errors import CheckpointError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with the checkpoints 1 and 2."""
    folder = tmp_path / "features"
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("v", initializer=1.0)
        session.run(tf.global_variables_initializer())
        saver = tf.train.Saver()
        for step in (1, 2):
            saver.save(session, str(folder / "model.ckpt"), global_step=step)
    return folder


def test_a_directory_stands_for_its_newest_checkpoint(directory: Path) -> None:
    newest = str(directory / "model.ckpt-2")
    assert latest_checkpoint(str(directory)) == newest
    assert require_checkpoint(f"{directory}/") == newest


@pytest.mark.parametrize("suffix", ["", ".index"])
def test_a_prefix_and_its_index_stand_for_themselves(directory: Path, suffix: str) -> None:
    prefix = str(directory / "model.ckpt-1")
    assert latest_checkpoint(prefix + suffix) == prefix


def test_there_may_be_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert latest_checkpoint(str(tmp_path / "nowhere")) is None
    assert latest_checkpoint(str(tmp_path / "empty")) is None


def test_a_state_file_that_names_lost_files_is_refused(directory: Path) -> None:
    for file in directory.glob("model.ckpt-2.*"):
        file.unlink()
    with pytest.raises(CheckpointError, match="no such checkpoint is there") as caught:
        latest_checkpoint(str(directory))
    (problem,) = caught.value.problems
    assert problem.choices == (str(directory / "model.ckpt-1"),)


def test_a_missing_path_is_reported_with_its_neighbours(directory: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*/feature\n") as caught:
        require_checkpoint(str(directory.parent / "feature"))
    (problem,) = caught.value.problems
    assert problem.choices == (str(directory),)


def test_a_missing_prefix_is_reported_with_its_neighbours(directory: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint at") as caught:
        require_checkpoint(str(directory / "model.ckpt-3"))
    (problem,) = caught.value.problems
    assert set(problem.choices) == {str(directory / f"model.ckpt-{step}") for step in (1, 2)}


def test_a_directory_without_a_state_file_offers_the_prefixes_in_it(directory: Path) -> None:
    (directory / "checkpoint").unlink()
    with pytest.raises(CheckpointError, match="holds no checkpoint") as caught:
        require_checkpoint(str(directory))
    (problem,) = caught.value.problems
    assert problem.choices == tuple(str(directory / f"model.ckpt-{step}") for step in (1, 2))
