from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from runner.checkpoints.contents import NoCheckpointError
from runner.checkpoints.locate import latest_checkpoint, require_checkpoint, resolve
from runner.errors import CheckpointError
from tests.tiny.privileges import folder_for_all, without_privileges

RUN = "runs/001"


def _checkpoints(folder: Path, *steps: int) -> None:
    """Writes what makes a directory one of checkpoints: their indices, and the list of them."""
    folder.mkdir(parents=True)
    for step in steps:
        (folder / f"model.ckpt-{step}.index").touch()
        (folder / f"model.ckpt-{step}.data-00000-of-00001").touch()
    lines = [f'model_checkpoint_path: "model.ckpt-{steps[-1]}"']
    lines += [f'all_model_checkpoint_paths: "model.ckpt-{step}"' for step in steps]
    (folder / "checkpoint").write_text("\n".join(lines))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of checkpoints, a run with its best of step 20, and what holds no checkpoint."""
    _checkpoints(tmp_path / "features", 1, 2)
    _checkpoints(tmp_path / RUN / "checkpoints", 10, 20, 30, 40)
    _checkpoints(tmp_path / RUN / "best", 20)
    (tmp_path / RUN / "run.json").write_text("{}")
    (tmp_path / RUN / "best" / "best.json").write_text('{"step": 20, "metrics": {"loss": 0.5}}')
    _checkpoints(tmp_path / "unlisted", 1, 2)
    (tmp_path / "unlisted" / "checkpoint").unlink()
    _checkpoints(tmp_path / "lost", 1, 2)
    (tmp_path / "lost" / "model.ckpt-2.index").unlink()
    _checkpoints(tmp_path / "damaged", 1)
    (tmp_path / "damaged" / "checkpoint").write_text("<html>")
    (tmp_path / "empty").mkdir()
    (tmp_path / "things").mkdir()
    for name in ("a.jpg", "b.txt", "c", "d"):
        (tmp_path / "things" / name).write_text("something")
    for folder, file in (("later", "checkpoint"), ("kept", "w.npz"), ("photos", "e.jpg")):
        (tmp_path / "above" / folder).mkdir(parents=True)
        (tmp_path / "above" / folder / file).write_text("something")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


BEST, KEPT = f"{RUN}/best/model.ckpt", f"{RUN}/checkpoints/model.ckpt"


@pytest.mark.parametrize(
    ("path", "choice", "found"),
    [
        ("features", {}, ["features/model.ckpt-2"]),
        ("features/", {}, ["features/model.ckpt-2"]),
        ("features/checkpoint", {}, ["features/model.ckpt-2"]),
        ("features/model.ckpt-1", {}, ["features/model.ckpt-1"]),
        ("features/model.ckpt-1.index", {}, ["features/model.ckpt-1"]),
        ("unlisted", {"which": "1"}, ["unlisted/model.ckpt-1"]),
        (RUN, {}, [f"{KEPT}-40"]),
        (f"{RUN}/checkpoints/", {}, [f"{KEPT}-40"]),
        (RUN, {"which": "10"}, [f"{KEPT}-10"]),
        (RUN, {"which": "best"}, [f"{BEST}-20"]),
        (f"{RUN}/checkpoints", {"which": "best"}, [f"{BEST}-20"]),
        (f"{RUN}/best", {"which": "best"}, [f"{BEST}-20"]),
        (f"{RUN}/best/", {"which": "best"}, [f"{BEST}-20"]),
        (f"{RUN}/best", {"which": "20"}, [f"{BEST}-20"]),
        (RUN, {"average": "last 3"}, [f"{KEPT}-20", f"{KEPT}-30", f"{KEPT}-40"]),
        ("unlisted", {"average": "last 2"}, ["unlisted/model.ckpt-1", "unlisted/model.ckpt-2"]),
        (
            RUN,
            {"average": [10, "30", "best", "latest", "features"]},
            [f"{KEPT}-10", f"{KEPT}-30", f"{BEST}-20", f"{KEPT}-40", "features/model.ckpt-2"],
        ),
    ],
)
def test_a_path_and_a_choice_stand_for_checkpoints(
    home: Path, path: str, choice: dict[str, Any], found: list[str]
) -> None:
    assert [os.path.relpath(each) for each in resolve(path, **choice)] == found


def test_a_step_is_taken_from_the_best_where_it_was_kept_no_longer(home: Path) -> None:
    (home / f"{KEPT}-20.index").unlink()
    assert resolve(str(home / RUN), "20") == [str(home / f"{BEST}-20")]


def test_a_tilde_is_the_home_of_the_user(home: Path) -> None:
    newest = str(home / "features/model.ckpt-2")
    assert resolve("~/features") == [newest]
    assert resolve("~", average=["~/features/model.ckpt-1", newest])[1] == newest


REFUSED: list[tuple[str, dict[str, Any], str, list[str] | None]] = [
    ("lost", {}, "names .*model.ckpt-2\n.*no such checkpoint is there", ["lost/model.ckpt-1"]),
    ("damaged", {}, "the `checkpoint` file in damaged is damaged", ["damaged/model.ckpt-1"]),
    ("feature", {}, "there is no checkpoint at feature\n", ["features"]),
    (
        "features/model.ckpt-3",
        {},
        "there is no checkpoint at",
        ["features/model.ckpt-2", "features/model.ckpt-1"],
    ),
    (
        "unlisted",
        {},
        "holds 2 checkpoints\n.*names the newest",
        ["unlisted/model.ckpt-1", "unlisted/model.ckpt-2"],
    ),
    ("runs", {}, "it holds runs; name one of them", ["runs/001"]),
    ("empty", {}, "holds no checkpoint\n  cause: it is empty\n", []),
    ("things", {}, r"but a\.jpg, b\.txt, c and 1 more", []),
    ("above", {}, r"but kept, later, photos\n", ["above/kept", "above/later"]),
    (RUN, {"which": "33"}, "holds no checkpoint of step 33", ["30", "40", "20", "10"]),
    ("empty", {"which": "3"}, "of step 3\n  cause: it holds no numbered", []),
    ("nothing", {"which": "3"}, "there is no checkpoint at", None),
    ("features", {"which": "best"}, "no best checkpoint is recorded for", ["1", "2"]),
    *(
        (RUN, {"which": each}, f"which is '{each}'\n(.*\n)*.*latest, best", None)
        for each in ("newest", "-1", "1.5", "")
    ),
    (RUN, {"average": "last 5"}, "`last 5`, and .* holds 4 (.*\n)*.*set it to `last 4`", None),
    ("empty", {"average": "last 2"}, "holds 0 checkpoints\n(.*\n)*.*name a directory of", []),
    ("nothing", {"average": "last 2"}, "there is no checkpoint at", None),
    ("features/model.ckpt-1", {"average": "last 2"}, "model.ckpt-1 is one checkpoint", []),
    (RUN, {"average": []}, "average is an empty list", []),
    *(
        (RUN, {"average": each}, f"average is '{each}'\n.*set it to `last 5`", [])
        for each in ("first 3", "last", "last 0", "last -1", "5")
    ),
    (RUN, {"which": "best", "average": "last 2"}, "both which=best and an average are asked", []),
]


@pytest.mark.parametrize(("path", "choice", "message", "choices"), REFUSED)
def test_what_is_not_there_is_reported_with_what_is(
    home: Path, path: str, choice: dict[str, Any], message: str, choices: list[str] | None
) -> None:
    with pytest.raises(CheckpointError) as caught:
        resolve(path, **choice)
    assert re.search(message, str(caught.value))
    if choices is not None:
        found = caught.value.problems[0].choices
        assert [os.path.relpath(each) if "/" in each else each for each in found] == choices
    absent = re.search(r"holds no checkpoint\n|there is no checkpoint at", str(caught.value))
    assert isinstance(caught.value, NoCheckpointError) == bool(absent)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"step": null}', '{"step": 25}'])
def test_a_damaged_record_of_the_best(home: Path, content: str) -> None:
    (home / RUN / "best" / "best.json").write_text(content)
    message = "names step 25\n.*no checkpoint of that" if "25" in content else "does not name the"
    with pytest.raises(CheckpointError, match=rf"best\.json {message}"):
        resolve(str(home / RUN), "best")


def test_all_problems_of_a_list_are_reported_at_once(home: Path) -> None:
    with pytest.raises(CheckpointError, match="of step 11") as caught:
        resolve(RUN, average=[11, 10, 10, "/nowhere/at/all"])
    assert "there is no checkpoint at /nowhere/at/all" in str(caught.value)
    assert "model.ckpt-10 twice" in str(caught.value)


def test_the_newest_checkpoint_of_tensorflow(home: Path) -> None:
    newest = str(home / "features/model.ckpt-2")
    assert latest_checkpoint(f"{home}/features") == require_checkpoint(f"{newest}.index") == newest
    assert latest_checkpoint("nowhere") is latest_checkpoint("empty") is None
    with pytest.raises(CheckpointError, match="no such checkpoint is there"):
        latest_checkpoint("lost")
    for path, choices in (("feature", {"features"}), ("unlisted", {1, 2})):
        with pytest.raises(NoCheckpointError, match="no checkpoint") as caught:
            require_checkpoint(path)
        assert len(caught.value.problems[0].choices) == len(choices)


def test_a_moved_directory_is_found(tmp_path: Path) -> None:
    directory = tmp_path / "kept"
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


def test_a_list_of_checkpoints_that_this_user_may_not_read_is_named(home: Path) -> None:
    with folder_for_all() as folder:
        shutil.copytree(home / "features", folder / "kept")
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


def test_the_files_of_a_run_in_mlflow_stand_for_it(home: Path) -> None:
    """They hold the last checkpoint and the best one, and neither record nor list."""
    run = home / RUN
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
