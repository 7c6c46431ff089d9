from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.checkpoints import contents
from runner.checkpoints.contents import NoCheckpointError
from runner.checkpoints.locate import checkpoint_paths, is_mlflow_uri, latest_checkpoint
from runner.checkpoints.open import open_reader
from runner.checkpoints.recognition import TABLE_MAGIC
from runner.errors import CheckpointError
from tests.support.privileges import folder_for_all, without_privileges

RUN = "runs/001"


def _checkpoints(folder: Path, *steps: int) -> None:
    """Writes the indices of checkpoints, and the list of them."""
    folder.mkdir(parents=True)
    for step in steps:
        (folder / f"model.ckpt-{step}.index").touch()
        (folder / f"model.ckpt-{step}.data-00000-of-00001").touch()
    lines = [f'model_checkpoint_path: "model.ckpt-{steps[-1]}"']
    lines += [f'all_model_checkpoint_paths: "model.ckpt-{step}"' for step in steps]
    (folder / "checkpoint").write_text("\n".join(lines))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of checkpoints, a run with its best of step 20, and other directories."""
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
    for folder, content in (("blank", b""), ("binary", b"\xff\xfe")):
        _checkpoints(tmp_path / folder, 1)
        (tmp_path / folder / "checkpoint").write_bytes(content)
    (tmp_path / "v1").mkdir()
    for shard in range(2):
        (tmp_path / "v1" / f"weights-7-0000{shard}-of-00002").write_bytes(TABLE_MAGIC)
    (tmp_path / "empty").mkdir()
    for folder, file in (("later", "checkpoint"), ("kept", "w.npz"), ("photos", "e.jpg")):
        (tmp_path / "above" / folder).mkdir(parents=True)
        (tmp_path / "above" / folder / file).write_text("something")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


BEST, KEPT = f"{RUN}/best/model.ckpt", f"{RUN}/checkpoints/model.ckpt"


@pytest.mark.parametrize(
    ("path", "choice", "expected"),
    [
        ("features", {}, ["features/model.ckpt-2"]),
        ("features/", {}, ["features/model.ckpt-2"]),
        ("features/checkpoint", {}, ["features/model.ckpt-2"]),
        ("features/model.ckpt-1", {}, ["features/model.ckpt-1"]),
        ("features/model.ckpt-1.index", {}, ["features/model.ckpt-1"]),
        ("unlisted", {"which": "1"}, ["unlisted/model.ckpt-1"]),
        ("v1", {}, ["v1/weights-7-?????-of-00002"]),
        ("v1/weights-7", {}, ["v1/weights-7-?????-of-00002"]),
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
    home: Path, path: str, choice: dict[str, Any], expected: list[str]
) -> None:
    assert [os.path.relpath(resolved) for resolved in checkpoint_paths(path, **choice)] == expected


def test_a_step_is_taken_from_the_best_where_it_was_kept_no_longer(home: Path) -> None:
    (home / f"{KEPT}-20.index").unlink()
    assert checkpoint_paths(str(home / RUN), "20") == [str(home / f"{BEST}-20")]


def test_a_tilde_is_the_home_of_the_user(home: Path) -> None:
    newest = str(home / "features/model.ckpt-2")
    assert checkpoint_paths("~/features") == [newest]
    assert checkpoint_paths("~", average=["~/features/model.ckpt-1", newest])[1] == newest


REFUSED: list[tuple[str, dict[str, Any], str, list[str] | None]] = [
    ("lost", {}, "names .*model.ckpt-2\n.*no such checkpoint is there", ["lost/model.ckpt-1"]),
    *(
        (path, {}, f"the `checkpoint` file in {path} is damaged", [f"{path}/model.ckpt-1"])
        for path in ("damaged", "blank", "binary")
    ),
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
    ("runs", {}, "runs holds no checkpoint\n", ["runs/001"]),
    ("empty", {}, "holds no checkpoint\n  cause: it is empty\n", []),
    ("above", {}, "above holds no checkpoint\n", ["above/kept", "above/later"]),
    (RUN, {"which": "33"}, "holds no checkpoint of step 33", ["30", "40", "20", "10"]),
    ("empty", {"which": "3"}, "of step 3\n  cause: it holds no numbered", []),
    ("nothing", {"which": "3"}, "there is no checkpoint at", None),
    ("runs:/1/m", {}, "runs:/1/m is in MLflow, and no tracking store is given", None),
    ("features", {"which": "best"}, "no best checkpoint is recorded for", ["1", "2"]),
    *(
        (RUN, {"which": which}, f"which is '{which}'\n(.*\n)*.*latest, best", None)
        for which in ("newest", "-1", "1.5", "")
    ),
    (RUN, {"average": "last 5"}, "`last 5`, and .* holds 4 checkpoints\n", None),
    ("empty", {"average": "last 2"}, "holds 0 checkpoints\n", []),
    ("nothing", {"average": "last 2"}, "there is no checkpoint at", None),
    ("features/model.ckpt-1", {"average": "last 2"}, "model.ckpt-1 holds 0", []),
]


@pytest.mark.parametrize(("path", "choice", "message", "choices"), REFUSED)
def test_what_is_not_there_is_reported_with_what_is(
    home: Path, path: str, choice: dict[str, Any], message: str, choices: list[str] | None
) -> None:
    with pytest.raises(CheckpointError) as caught:
        checkpoint_paths(path, **choice)
    assert re.search(message, str(caught.value))
    if choices is not None:
        shown = caught.value.problems[0].choices
        assert [os.path.relpath(path) if "/" in path else path for path in shown] == choices
    absent = re.search(r"holds no checkpoint\n|there is no checkpoint at", str(caught.value))
    assert isinstance(caught.value, NoCheckpointError) == bool(absent)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"step": null}', '{"step": 25}'])
def test_a_damaged_record_of_the_best(home: Path, content: str) -> None:
    (home / RUN / "best" / "best.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"best\.json does not name a checkpoint beside it"):
        checkpoint_paths(str(home / RUN), "best")


def test_all_problems_of_a_list_are_reported_at_once(home: Path) -> None:
    with pytest.raises(CheckpointError, match="of step 11") as caught:
        checkpoint_paths(RUN, average=[11, 10, "/nowhere/at/all"])
    assert "there is no checkpoint at /nowhere/at/all" in str(caught.value)


def test_the_newest_checkpoint_of_tensorflow(home: Path) -> None:
    newest = str(home / "features/model.ckpt-2")
    assert latest_checkpoint(f"{home}/features") == newest
    assert latest_checkpoint("nowhere") is latest_checkpoint("empty") is None
    with pytest.raises(CheckpointError, match="no such checkpoint is there"):
        latest_checkpoint("lost")
    with pytest.raises(NoCheckpointError, match="no checkpoint") as caught:
        checkpoint_paths("feature")
    assert len(caught.value.problems[0].choices) == len({"features"})


DENIED = "cannot be read\n  cause: Permission denied\n  remedy: give this user the right to read it"


@pytest.mark.parametrize(
    ("place", "choice"),
    [
        ("closed", {}),
        ("run", {"which": "3"}),
        ("run", {"which": "best"}),
        ("run", {"average": "last 2"}),
    ],
)
def test_what_this_user_may_not_list_is_named(place: str, choice: dict[str, Any]) -> None:
    with folder_for_all() as folder:
        for closed in (folder / "closed", folder / "run" / "checkpoints"):
            closed.mkdir(parents=True)
        (folder / "closed" / "w.npz").write_bytes(b"something")
        (folder / "run" / "run.json").write_text("{}")
        (folder / "closed").chmod(0)
        (folder / "run" / "checkpoints").chmod(0)
        with without_privileges(), pytest.raises(CheckpointError, match=DENIED) as caught:
            checkpoint_paths(str(folder / place), **choice)
        assert not isinstance(caught.value, NoCheckpointError), "no optional checkpoint is absent"


def test_a_list_of_checkpoints_that_this_user_may_not_read_is_named(home: Path) -> None:
    with folder_for_all() as folder:
        shutil.copytree(home / "features", folder / "kept")
        (folder / "kept" / "checkpoint").chmod(0)
        with without_privileges(), pytest.raises(CheckpointError, match=DENIED):
            latest_checkpoint(str(folder / "kept"))


def test_the_files_of_a_run_in_mlflow_stand_for_it(home: Path) -> None:
    """They hold the last checkpoint and the best one, and neither record nor list."""
    run = home / RUN
    (run / "run.json").unlink()
    for file in (run / "checkpoints").iterdir():
        if "40" not in file.name:
            file.unlink()
    last = str(run / "checkpoints" / "model.ckpt-40")
    assert checkpoint_paths(str(run)) == checkpoint_paths(str(run), "40") == [last]
    assert (
        checkpoint_paths(str(run), "best")
        == checkpoint_paths(str(run), "20")
        == [str(run / "best/model.ckpt-20")]
    )
    with pytest.raises(CheckpointError, match="holds no checkpoint of step 30") as caught:
        checkpoint_paths(str(run), "30")
    assert caught.value.problems[0].choices == ("20", "40")


def test_a_directory_is_searched_for_checkpoints_and_not_for_parts_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = ["a.npz", "big.safetensors.index.json", "m.keras", "m.safetensors", "w.h5"]
    bundles = ["model-1", "model-12", "other"]
    for name in (*saved, *(f"{bundle}.index" for bundle in bundles), "model-1.data-00000-of-00001"):
        (tmp_path / name).touch()
    for name in ("notes.txt", "notes.ckpt", "big-00001-of-00002.safetensors"):
        (tmp_path / name).write_text("something else")
    table = bytes(100) + bytes.fromhex("57fb808b247547db")
    for name in ("slim.ckpt", "model.ckpt-7", "unusual_name"):
        (tmp_path / name).write_bytes(table)
    monkeypatch.chdir(tmp_path)
    expected = sorted([*saved, *bundles, "slim.ckpt", "model.ckpt-7"])
    assert [Path(path).name for path in contents.in_directory(str(tmp_path))] == expected
    assert list(contents.in_directory("")) == expected
    assert contents.steps("") == {1: "model-1", 7: "model.ckpt-7", 12: "model-12"}
    assert contents.in_order("") == ["model-1", "model.ckpt-7", "model-12"]
    assert contents.newest("") is None
    names = ("model-1", "model-1", "gone-5", "model-12")
    lines = [f'all_model_checkpoint_paths: "{name}"' for name in names[1:]]
    (tmp_path / "checkpoint").write_text(
        "\n".join([f'model_checkpoint_path: "{names[0]}"', *lines])
    )
    assert contents.newest(str(tmp_path)) == f"{tmp_path}/model-1"
    assert contents.in_order(str(tmp_path)) == [f"{tmp_path}/model-12", f"{tmp_path}/model-1"]


PYTHON = "python_function: {loader_module: mlflow.x, data: code}"


@pytest.mark.parametrize(
    ("flavors", "file", "expected"),
    [
        ("tensorflow: {saved_model_dir: served}", "served/saved_model.pb", "served"),
        ("tensorflow: {data: data}", "data/model.keras", "data/model.keras"),
        ("keras: {data: data}", "data/model/saved_model.pb", "data/model"),
        ("transformers: {model_binary: model}", "model/m.safetensors", "model/m.safetensors"),
        ("sklearn: {pickled_model: model.pkl}", "model.pkl", "saved for python_function, sklearn"),
        ("tensorflow: {data: data}", "code/x", "m holds no checkpoint\n"),
        ("{", "code/x", "m/MLmodel is damaged\n"),
    ],
)
def test_a_model_that_mlflow_saved_is_what_its_flavor_names(
    tmp_path: Path, flavors: str, file: str, expected: str
) -> None:
    for path in (file, "code/y.npz"):
        (tmp_path / "m" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "m" / path).touch()
    (tmp_path / "m/MLmodel").write_text(f"flavors: {{{PYTHON}, {flavors}}}")
    if " " not in expected:
        assert checkpoint_paths(str(tmp_path / "m")) == [str(tmp_path / "m" / expected)]
        return
    with pytest.raises(CheckpointError, match=expected):
        checkpoint_paths(str(tmp_path / "m"))


class Store:
    """A store with one model, whose alias can move."""

    def __init__(self, store: str, version: int) -> None:
        self.store, self.version = store, version
        self.downloads: list[str] = []

    def pin(self, uri: str) -> str:
        return uri.replace("@champion", f"/{self.version}")

    def download(self, uri: str, folder: str) -> str:
        self.downloads.append(uri)
        target = Path(folder) / "model"
        target.mkdir()
        np.savez(target / "weights.npz", w=self.version)
        return str(target)


def test_an_artifact_is_downloaded_once_for_each_store_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_CACHE", str(tmp_path))
    store, other = Store("sqlite:///somewhere.db", 1), Store("sqlite:///elsewhere.db", 5)

    def value(uri: str, artifacts: Store) -> int:
        (path,) = checkpoint_paths(uri, artifacts=artifacts)
        ((_, version),) = open_reader(path).read(["w"])
        return int(version.item())

    uris = ["runs:/1234/model", "models:/m@champion", "mlflow-artifacts:/1/model"]
    assert [value(uri, store) for uri in uris * 2] == [1] * 6
    assert store.downloads == [uris[0], "models:/m/1", uris[2]]
    store.version = 2
    assert value("models:/m@champion", store) == 2, "the alias has moved"
    assert value(uris[0], other) == 5
    for path in ("runs/tiny", "models", "gs://bucket/model", "/runs:/x"):
        assert not is_mlflow_uri(path)
