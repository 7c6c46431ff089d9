from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from runner.checkpoints.contents import NoCheckpointError
from runner.checkpoints.locate import latest_checkpoint, require_checkpoint, resolve
from runner.errors import CheckpointError
from tests.tiny.privileges import folder_for_all, without_privileges


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


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder: checkpoints of steps 10 to 40, the best of step 20."""
    folder = tmp_path / "runs" / "001"
    for name in ("checkpoints", "best"):
        (folder / name).mkdir(parents=True)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("v", initializer=1.0)
        session.run(tf.global_variables_initializer())
        saver, best = tf.train.Saver(), tf.train.Saver()
        for step in (10, 20, 30, 40):
            saver.save(session, str(folder / "checkpoints" / "model.ckpt"), global_step=step)
        best.save(session, str(folder / "best" / "model.ckpt"), global_step=20)
    (folder / "run.json").write_text("{}")
    record = {"step": 20, "metrics": {"loss": 0.5}}
    (folder / "best" / "best.json").write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize("inside", ["", "checkpoints", "checkpoints/"])
def test_latest_of_a_run(run: Path, inside: str) -> None:
    assert resolve(os.path.join(run, inside)) == [str(run / "checkpoints" / "model.ckpt-40")]


@pytest.mark.parametrize("inside", ["", "checkpoints", "best", "best/"])
def test_best_of_a_run_is_the_recorded_one(run: Path, inside: str) -> None:
    assert resolve(os.path.join(run, inside), "best") == [str(run / "best" / "model.ckpt-20")]


def test_a_step_of_a_run(run: Path) -> None:
    assert resolve(str(run), "10") == [str(run / "checkpoints" / "model.ckpt-10")]
    assert resolve(str(run / "best"), "20") == [str(run / "best" / "model.ckpt-20")]
    for file in (run / "checkpoints").glob("model.ckpt-20.*"):
        file.unlink()
    assert resolve(str(run), "20") == [str(run / "best" / "model.ckpt-20")]


def test_a_step_that_is_not_there_is_reported_with_the_nearest(run: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint of step 33") as caught:
        resolve(str(run), "33")
    assert caught.value.problems[0].choices == ("30", "40", "20", "10")


def test_a_step_of_a_directory_without_any(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="of step 3\n  cause: it holds no numbered"):
        resolve(str(tmp_path), "3")
    with pytest.raises(NoCheckpointError, match="there is no checkpoint at"):
        resolve(str(tmp_path / "nothing"), "3")


def test_best_without_a_record(directory: Path) -> None:
    with pytest.raises(CheckpointError, match="no best checkpoint is recorded for") as caught:
        resolve(str(directory), "best")
    assert caught.value.problems[0].choices == ("1", "2")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"step": null}'])
def test_a_damaged_record_of_the_best(run: Path, content: str) -> None:
    (run / "best" / "best.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"best\.json does not name the best checkpoint"):
        resolve(str(run), "best")


def test_a_best_checkpoint_that_is_gone(run: Path) -> None:
    (run / "best" / "best.json").write_text('{"step": 25}')
    with pytest.raises(CheckpointError, match=r"best\.json names step 25\n.*no checkpoint of that"):
        resolve(str(run), "best")


@pytest.mark.parametrize("which", ["newest", "-1", "1.5", ""])
def test_an_unknown_choice(run: Path, which: str) -> None:
    with pytest.raises(CheckpointError, match=f"which is '{which}'\n(.*\n)*.*latest, best"):
        resolve(str(run), which)


def test_the_last_ones_are_averaged(run: Path) -> None:
    expected = [str(run / "checkpoints" / f"model.ckpt-{step}") for step in (20, 30, 40)]
    assert resolve(str(run), average="last 3") == expected
    (run / "checkpoints" / "checkpoint").unlink()
    assert resolve(str(run / "checkpoints"), average="last 3") == expected


def test_too_few_to_average(run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"`last 5`, and .* holds 4 checkpoints") as caught:
        resolve(str(run), average="last 5")
    assert "set it to `last 4`" in caught.value.problems[0].remedy


def test_none_to_average(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds 0 checkpoints\n(.*\n)*.*name a directory of"):
        resolve(str(tmp_path), average="last 2")
    with pytest.raises(NoCheckpointError, match="there is no checkpoint at"):
        resolve(str(tmp_path / "nothing"), average="last 2")


def test_the_last_ones_of_a_single_checkpoint(directory: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model.ckpt-1 is one checkpoint"):
        resolve(str(directory / "model.ckpt-1"), average="last 2")


def test_a_list_is_averaged(run: Path, directory: Path) -> None:
    found = resolve(str(run), average=[10, "30", "best", "latest", str(directory)])
    assert found == [
        str(run / "checkpoints" / "model.ckpt-10"),
        str(run / "checkpoints" / "model.ckpt-30"),
        str(run / "best" / "model.ckpt-20"),
        str(run / "checkpoints" / "model.ckpt-40"),
        str(directory / "model.ckpt-2"),
    ]


def test_all_problems_of_a_list_are_reported_at_once(run: Path) -> None:
    with pytest.raises(CheckpointError, match="of step 11") as caught:
        resolve(str(run), average=[11, 10, 10, "/nowhere/at/all"])
    text = str(caught.value)
    assert "there is no checkpoint at /nowhere/at/all" in text
    assert "model.ckpt-10 twice" in text


def test_an_empty_list(run: Path) -> None:
    with pytest.raises(CheckpointError, match="average is an empty list"):
        resolve(str(run), average=[])


@pytest.mark.parametrize("average", ["first 3", "last", "last 0", "last -1", "5"])
def test_an_average_that_is_none(run: Path, average: str) -> None:
    with pytest.raises(CheckpointError, match=f"average is '{average}'\n.*set it to `last 5`"):
        resolve(str(run), average=average)


def test_a_choice_and_an_average_exclude_each_other(run: Path) -> None:
    with pytest.raises(CheckpointError, match="both which=best and an average are asked for"):
        resolve(str(run), "best", "last 2")


def test_a_container_of_runs_offers_them(run: Path) -> None:
    with pytest.raises(NoCheckpointError, match="it holds runs; name one of them") as caught:
        resolve(str(run.parent))
    assert caught.value.problems[0].choices == (str(run),)


def test_an_empty_directory_holds_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(NoCheckpointError, match=r"holds no checkpoint\n  cause: it is empty\n"):
        resolve(str(tmp_path))


def test_a_directory_of_something_else_is_told_by_what_it_holds(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.txt", "c", "d"):
        (tmp_path / name).write_text("something")
    for folder, file in (("later", "checkpoint"), ("kept", "w.npz"), ("photos", "e.jpg")):
        (tmp_path / "sub" / folder).mkdir(parents=True)
        (tmp_path / "sub" / folder / file).write_text("something")
    with pytest.raises(NoCheckpointError, match=r"but a\.jpg, b\.txt, c and 2 more") as caught:
        resolve(str(tmp_path))
    assert caught.value.problems[0].choices == ()
    with pytest.raises(NoCheckpointError, match=r"but kept, later, photos\n") as caught:
        resolve(str(tmp_path / "sub"))
    folders = tuple(str(tmp_path / "sub" / each) for each in ("kept", "later"))
    assert caught.value.problems[0].choices == folders


def test_several_checkpoints_without_a_state_file(directory: Path) -> None:
    (directory / "checkpoint").unlink()
    with pytest.raises(CheckpointError, match=r"holds 2 checkpoints\n.*names the newest"):
        resolve(str(directory))


def test_a_damaged_state_file(directory: Path) -> None:
    (directory / "checkpoint").write_text("<html>")
    with pytest.raises(CheckpointError, match=r"the `checkpoint` file in .* is damaged"):
        resolve(str(directory))


def test_the_state_file_stands_for_its_directory(directory: Path) -> None:
    assert resolve(str(directory / "checkpoint")) == [str(directory / "model.ckpt-2")]


def test_a_moved_directory_is_found(directory: Path, tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("v", initializer=1.0)
        session.run(tf.global_variables_initializer())
        saver = tf.train.Saver(save_relative_paths=True)
        saver.save(session, str(directory / "model.ckpt"), global_step=3)
    moved = directory.rename(tmp_path / "moved")
    assert resolve(str(moved)) == [str(moved / "model.ckpt-3")]


DENIED = "cannot be read\n  cause: Permission denied\n  remedy: give this user the right to read it"


@pytest.mark.parametrize("choice", [{}, {"which": "3"}, {"which": "best"}, {"average": "last 2"}])
@pytest.mark.parametrize("place", ["closed", "run"])
def test_what_this_user_may_not_list_is_named(place: str, choice: dict[str, Any]) -> None:
    with folder_for_all() as folder:
        for closed in (folder / "closed", folder / "run" / "checkpoints"):
            closed.mkdir(parents=True)
        (folder / "closed" / "w.npz").write_bytes(b"something")
        (folder / "run" / "run.json").write_text("{}")
        (folder / "closed").chmod(0)
        (folder / "run" / "checkpoints").chmod(0)
        with without_privileges(), pytest.raises(CheckpointError, match=DENIED) as caught:
            resolve(str(folder / place), **choice)
        assert not isinstance(caught.value, NoCheckpointError), "no optional checkpoint is absent"


def test_a_list_of_checkpoints_that_this_user_may_not_read_is_named(directory: Path) -> None:
    with folder_for_all() as folder:
        shutil.copytree(directory, folder / "kept")
        (folder / "kept" / "checkpoint").chmod(0)
        with without_privileges(), pytest.raises(CheckpointError, match=DENIED):
            latest_checkpoint(str(folder / "kept"))


def test_a_folder_that_this_user_may_not_list_is_no_choice(tmp_path: Path) -> None:
    with folder_for_all() as folder:
        (folder / "closed").mkdir()
        (folder / "closed").chmod(0)
        with without_privileges(), pytest.raises(NoCheckpointError, match="but closed") as caught:
            resolve(str(folder))
    assert caught.value.problems[0].choices == ()


def test_a_tilde_is_the_home_of_the_user(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(directory.parent))
    newest = str(directory / "model.ckpt-2")
    assert resolve(f"~/{directory.name}") == [newest]
    older = f"~/{directory.name}/model.ckpt-1"
    assert resolve("~", average=[older, newest]) == [newest.replace("-2", "-1"), newest]


def test_the_files_of_a_run_in_mlflow_stand_for_it(run: Path) -> None:
    """They hold the last checkpoint and the best one, and neither record nor list."""
    (run / "run.json").unlink()
    for each in (run / "checkpoints").iterdir():
        if "40" not in each.name:
            each.unlink()
    last = str(run / "checkpoints" / "model.ckpt-40")
    assert resolve(str(run)) == resolve(str(run), "40") == [last]
    assert resolve(str(run), "best") == resolve(str(run), "20") == [str(run / "best/model.ckpt-20")]
    with pytest.raises(CheckpointError, match="holds no checkpoint of step 30") as caught:
        resolve(str(run), "30")
    assert caught.value.problems[0].choices == ("20", "40")
