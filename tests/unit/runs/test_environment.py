from __future__ import annotations

import getpass
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from runner.runs.provenance import environment_tags, git_tags


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
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
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
    monkeypatch.setattr("runner.runs.provenance._PACKAGES", ("no-such-package", "tensorflow"))
    tags = environment_tags(repository)
    assert tags["mlflow.source.git.branch"] == "main"
    assert tags["mlflow.source.type"] == "LOCAL"
    assert tags["mlflow.user"] == getpass.getuser()
    assert tags["runner.python"] == platform.python_version()
    assert tags["runner.version.tensorflow"] == metadata.version("tensorflow")
    assert "runner.version.no-such-package" not in tags
    assert tags["runner.host"]
    masked = "python -m runner 'name=my run' 'tracking.uri=http://me:***@host:1'"
    assert tags["runner.command"] == masked


@pytest.mark.parametrize(
    ("program", "name"), [("/site/runner/__main__.py", "runner"), ("tools/train.py", "train.py")]
)
def test_the_source_is_named_as_it_was_run(
    repository: Path, monkeypatch: pytest.MonkeyPatch, program: str, name: str
) -> None:
    monkeypatch.setattr(sys, "argv", [program])
    assert environment_tags(repository)["mlflow.source.name"] == name


def test_a_user_without_a_name_is_left_out(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nameless() -> str:
        raise OSError("no user name in the password database")

    monkeypatch.setattr(getpass, "getuser", nameless)
    tags = environment_tags(repository)
    assert "mlflow.user" not in tags
    assert "runner.host" in tags
