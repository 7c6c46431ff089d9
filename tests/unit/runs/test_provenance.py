"""The environment of a run as tags, the document beside a checkpoint, and a run's ancestors."""

from __future__ import annotations

import getpass
import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from runner.checkpoints.reader import CheckpointSpec
from runner.commands.command_line import main
from runner.config.schema import TrackingConfig
from runner.runs.lineage import Ancestor, lineage
from runner.runs.provenance import (
    environment_tags,
    git_tags,
    name_tracked_run,
    origin,
    provenance_of,
    source_run_tags,
)
from runner.runs.run_directory import RunDirectory, RunRecord
from runner.system.status import Status
from runner.tracking import RunStore, open_store
from runner.tracking.mlflow_store import MlflowStore
from runner.tracking.tracking_directory import Position, RunIdentity, TrackingDirectory


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    command = ["git", *identity, "-c", "commit.gpgsign=false", *arguments]
    finished = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
    return finished.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--initial-branch=main")
    (tmp_path / "model.py").write_text("x = 1\n")
    (tmp_path / "src").mkdir()
    git(tmp_path, "add", "model.py")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_a_clean_repository_is_found_from_a_directory_inside(repository: Path) -> None:
    assert git_tags(repository / "src") == {
        "mlflow.source.git.commit": git(repository, "rev-parse", "HEAD"),
        "mlflow.source.git.branch": "main",
        "mlflow.source.git.dirty": "false",
    }


@pytest.mark.parametrize(
    ("file", "added", "dirty"),
    [("model.py", False, "true"), ("model.py", True, "true"), ("mlflow.db", False, "false")],
)
def test_changes_to_files_that_git_knows_are_dirty(
    repository: Path, file: str, added: bool, dirty: str
) -> None:
    (repository / file).write_text("x = 2\n")
    if added:
        git(repository, "add", file)
    assert git_tags(repository)["mlflow.source.git.dirty"] == dirty


def test_a_detached_head_has_no_branch_and_a_new_repository_no_commit(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    git(repository, "checkout", "--detach")
    assert set(git_tags(repository)) == {"mlflow.source.git.commit", "mlflow.source.git.dirty"}
    new = tmp_path_factory.mktemp("new")
    git(new, "init", "--initial-branch=main")
    assert set(git_tags(new)) == {"mlflow.source.git.branch", "mlflow.source.git.dirty"}


def test_without_git_or_a_repository_there_are_no_git_tags(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tmp_path_factory.mktemp("alone")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(alone.parent))
    assert git_tags(alone) == git_tags(alone / "missing") == {}
    monkeypatch.setenv("PATH", "")
    assert git_tags(repository) == {}
    assert not any("git" in tag for tag in environment_tags(repository))


def test_the_environment_is_described_in_mlflow_names(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["python", "-m", "runner", "name=my run", "tracking.uri=http://me:s3cret@host:1"]
    monkeypatch.setattr(sys, "orig_argv", command)
    monkeypatch.setattr(sys, "argv", ["tools/train.py"])
    monkeypatch.setattr("runner.runs.provenance._PACKAGES", ("no-such-package", "tensorflow"))
    tags = environment_tags(repository)
    assert tags["mlflow.source.git.branch"] == "main"
    assert tags["mlflow.source.type"] == "LOCAL"
    assert tags["mlflow.user"] == getpass.getuser()
    assert tags["runner.python"] == platform.python_version()
    assert tags["runner.version.tensorflow"] == metadata.version("tensorflow")
    assert "runner.version.no-such-package" not in tags
    assert tags["runner.host"]
    assert tags["mlflow.source.name"] == "train.py"
    masked = "python -m runner 'name=my run' 'tracking.uri=http://me:***@host:1'"
    assert tags["runner.command"] == masked


def test_a_module_is_named_as_it_was_run_and_a_user_without_a_name_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nameless() -> str:
        raise OSError("no user name in the password database")

    monkeypatch.setattr(getpass, "getuser", nameless)
    monkeypatch.setattr(sys, "argv", ["/site/runner/__main__.py"])
    tags = environment_tags(tmp_path)
    assert "mlflow.user" not in tags
    assert tags["mlflow.source.name"] == "runner"


FOUND: dict[str, Any] = {"schema": 2, "run": {"run_id": "r1"}, "sources": {}, "variables": {}}


@pytest.mark.parametrize("path", ["model.ckpt-7", "model.npz", "", "saved_model"])
def test_it_is_beside_a_checkpoint_or_in_a_directory(tmp_path: Path, path: str) -> None:
    (tmp_path / "provenance.json").write_text(json.dumps(FOUND))
    assert provenance_of(str(tmp_path / path)) == FOUND
    assert provenance_of(str(tmp_path / "elsewhere" / "model.ckpt-7")) is None


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("{", "is not the provenance of a checkpoint"),
        ("{}", "is not the provenance of a checkpoint"),
        ("[]", "is not the provenance of a checkpoint"),
        ('{"schema": 3}', "has another layout"),
        ('{"schema": 2, "run": 5}', "has another layout"),
    ],
)
def test_a_file_that_no_run_has_written_is_reported_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, warning: str
) -> None:
    (tmp_path / "provenance.json").write_text(text)
    assert provenance_of(str(tmp_path / "model.ckpt-7")) is None
    assert warning in caplog.text


def test_the_writer_is_known_from_it_or_from_the_uri(tmp_path: Path) -> None:
    path = str(tmp_path / "model.npz")
    spec = CheckpointSpec(path, 7, {}, content=lambda: "sha256:ab")
    assert origin(path, spec).run is None
    assert origin("runs:/r0", spec).run == {"run_id": "r0"}
    by_uri = origin("runs:/r0/best", spec)
    assert (by_uri.run, by_uri.provenance) == ({"run_id": "r0"}, None)
    (tmp_path / "provenance.json").write_text(json.dumps(FOUND))
    by_file = origin("runs:/r0/best", spec)
    assert (by_file.run, by_file.provenance) == ({"run_id": "r1"}, FOUND)
    (tmp_path / "provenance.json").write_text(json.dumps({**FOUND, "run": {"run_id": None}}))
    unnamed = origin("runs:/r1/best", spec)
    assert (unnamed.run, unnamed.provenance) == ({"run_id": "r1"}, FOUND)
    found = by_file.document()
    assert (found["path"], found["step"], found["digest"]) == (path, 7, "sha256:ab")


def make_run(root: Path, name: str, **sources: str) -> Path:
    path = root / name / "001"
    (path / "best").mkdir(parents=True)
    record = RunRecord(name, "f", Status.FINISHED, {}, objective=0.25, sources=sources)
    RunDirectory(path).write(record)
    return path


@pytest.fixture
def family(tmp_path: Path) -> Path:
    """lstm_cnn <- digits_cnn, and <- short_sequences <- digits_cnn."""
    cnn = f"{make_run(tmp_path, 'digits_cnn')}/best/model.ckpt-10"
    short = make_run(tmp_path, "short_sequences", cnn=cnn)
    return make_run(
        tmp_path, "lstm_cnn", cnn=cnn, head="/models/head", lstm=f"{short}/best/model.ckpt-15"
    )


def test_a_directory_leads_to_all_that_it_came_from(family: Path, tmp_path: Path) -> None:
    cnn = Ancestor(f"digits_cnn  {tmp_path}/digits_cnn/001  FINISHED, objective 0.25", {})
    short = f"short_sequences  {tmp_path}/short_sequences/001  FINISHED, objective 0.25"
    assert lineage(str(family)) == Ancestor(
        f"lstm_cnn  {family}  FINISHED, objective 0.25",
        {"cnn": cnn, "lstm": Ancestor(short, {"cnn": cnn}), "head": Ancestor("/models/head", {})},
    )


def test_it_is_printed_as_a_tree_without_importing_mlflow(family: Path) -> None:
    script = (
        "import sys; from runner.commands.command_line import main\n"
        "assert main() == 0\n"
        "assert not {'hydra', 'mlflow', 'tensorflow'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", script, "lineage", str(family)]
    printed = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout
    assert [line.strip().split("  ")[0] for line in printed.splitlines()] == [
        "lstm_cnn",
        "├── cnn: digits_cnn",
        "├── head: /models/head",
        "└── lstm: short_sequences",
        "└── cnn: digits_cnn",
    ]


def test_a_directory_that_is_no_run_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lineage", str(tmp_path)]) == 2
    assert f"runner: {tmp_path} is not a run" in capsys.readouterr().err
    store = ["--uri", f"sqlite:///{tmp_path}/mlflow.db"]
    assert main(["lineage", "nope"]) == 2
    assert "runner: nope is not a run\n  cause: it does not exist" in capsys.readouterr().err
    assert main(["lineage", "nope", *store]) == 2
    assert "runner: nope is not in sqlite:" in capsys.readouterr().err
    assert main(["lineage", str(tmp_path), *store]) == 2
    assert "cause: it is a directory\n  remedy: leave out the URI" in capsys.readouterr().err
    assert main(["lineage", "0" * 32, *store]) == 2
    assert f"cannot be read\n  cause: there is no {tmp_path}/m" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_runs_are_linked_by_id_and_else_by_directory(
    family: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = dict(RunDirectory(family).load_record().sources)
    cnn, short = str(tmp_path / "digits_cnn/001"), str(tmp_path / "short_sequences/001")
    assert source_run_tags(sources, RunStore()) == {
        "runner.source_run.cnn": cnn,
        "runner.source_run.lstm": short,
    }
    known = {Path(cnn): "abc"}
    monkeypatch.setattr(RunStore, "__init__", lambda self: None)
    monkeypatch.setattr(RunStore, "run_id", lambda self, directory: known.get(directory))
    assert source_run_tags(sources, RunStore()) == {
        "runner.source_run.cnn": "abc",
        "runner.source_run.lstm": short,
    }


def test_an_id_leads_to_all_that_it_came_from(
    family: Path, tmp_path: Path, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{database}"
    store = MlflowStore(uri)

    def record(uid: str, tags: dict[str, str]) -> str:
        run = store.find_or_create(RunIdentity(uid, "digits", uid, tags), None, None)
        run.finish(Status.FINISHED, "")
        return run.run_id

    cnn = record("cnn", {})
    short = tmp_path / "short_sequences/001"
    run_id = record(
        "lstm_cnn",
        {
            "runner.source.cnn": "/gone/best/model.ckpt-10",
            "runner.source.cnn.digest": "sha256:0123",
            "runner.source_run.cnn": cnn,
            "runner.source.lstm": f"{short}/best/model.ckpt-15",
            "runner.source_run.lstm": str(short),
            "runner.source.head": "/models/head",
        },
    )
    found = lineage(run_id, uri)
    assert found.label == f"digits  run {run_id}  FINISHED"
    assert found.sources["cnn"] == Ancestor(f"digits  run {cnn}  FINISHED", {})
    assert found.sources["lstm"].label.startswith("short_sequences  ")
    assert list(found.sources["lstm"].sources) == ["cnn"]
    assert found.sources["head"] == Ancestor("/models/head", {})
    assert main(["lineage", "0" * 32, "--uri", uri]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_run_that_the_store_has_named_is_named_in_its_provenance(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = RunDirectory(make_run(tmp_path, "digits"))
    uri = "http://host"
    store = open_store(TrackingConfig(uri=uri), {})
    own, _, copy = directory.provenances
    named = {"schema": 2, "run": {"run_id": None, "run_dir": "x"}}
    name_tracked_run(directory, store)
    assert not own.exists()
    own.write_text(json.dumps(named))
    copy.write_text("{")  # The machine died before it was on the disk.
    name_tracked_run(directory, store)
    assert json.loads(own.read_text()) == json.loads(copy.read_text()) == named
    files = TrackingDirectory(directory.path)
    files.delivery_lock(uri)
    files.write_position(uri, Position("abc"))
    name_tracked_run(directory, store)
    named["run"] = {"run_id": "abc", "run_dir": "x"}
    assert json.loads(own.read_text()) == json.loads(copy.read_text()) == named
    for other in ('{"schema": 0}', "{"):
        own.write_text(other)
        name_tracked_run(directory, store)
        assert own.read_text() == other
    assert f"{own} is not the provenance of a checkpoint" in caplog.text
