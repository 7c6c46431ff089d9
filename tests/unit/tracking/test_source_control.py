from __future__ import annotations

import getpass
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from runner.tracking.source_control import environment_tags, git_tags


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


@pytest.mark.parametrize("staged", [False, True])
def test_changes_to_tracked_files_are_dirty(repository: Path, staged: bool) -> None:
    (repository / "model.py").write_text("x = 2\n")
    if staged:
        git(repository, "add", "model.py")
    assert git_tags(repository)["mlflow.source.git.dirty"] == "true"


def test_files_that_git_does_not_know_are_not_dirty(repository: Path) -> None:
    (repository / "mlflow.db").touch()
    assert git_tags(repository)["mlflow.source.git.dirty"] == "false"


def test_a_detached_head_has_no_branch(repository: Path) -> None:
    git(repository, "checkout", "--detach")
    assert set(git_tags(repository)) == {"mlflow.source.git.commit", "mlflow.source.git.dirty"}


def test_a_repository_without_commits_has_no_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "--initial-branch=main")
    assert git_tags(tmp_path) == {
        "mlflow.source.git.branch": "main",
        "mlflow.source.git.dirty": "false",
    }


def test_no_repository_gives_no_git_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_tags(tmp_path) == {}
    assert not any("git" in tag for tag in environment_tags(tmp_path))


def test_no_git_gives_no_git_tags(repository: Path) -> None:
    assert git_tags(repository, git="no-such-program") == {}


def test_no_directory_gives_no_git_tags(tmp_path: Path) -> None:
    assert git_tags(tmp_path / "missing") == {}


def test_the_directory_counts_even_inside_a_git_hook(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    git(other, "init", "--initial-branch=elsewhere")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert git_tags(repository)["mlflow.source.git.branch"] == "main"


def test_the_environment_is_described_in_mlflow_names(repository: Path) -> None:
    tags = environment_tags(repository)
    assert tags["mlflow.source.git.branch"] == "main"
    assert tags["mlflow.source.type"] == "LOCAL"
    assert tags["mlflow.user"] == getpass.getuser()
    assert tags["runner.python"] == platform.python_version()
    assert tags["runner.version.tensorflow"] == metadata.version("tensorflow")
    assert tags["runner.host"]
    assert Path(sys.orig_argv[0]).name in tags["runner.command"]
    assert all(isinstance(value, str) for value in tags.values())


@pytest.mark.parametrize(
    ("program", "name"), [("/site/runner/__main__.py", "runner"), ("tools/train.py", "train.py")]
)
def test_the_source_is_named_as_it_was_run(
    repository: Path, monkeypatch: pytest.MonkeyPatch, program: str, name: str
) -> None:
    monkeypatch.setattr(sys, "argv", [program])
    assert environment_tags(repository)["mlflow.source.name"] == name


def test_the_command_is_kept_without_passwords(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["python", "-m", "runner", "name=my run", "tracking.uri=http://me:s3cret@host:1"]
    monkeypatch.setattr(sys, "orig_argv", command)
    assert environment_tags(repository)["runner.command"] == (
        "python -m runner 'name=my run' 'tracking.uri=http://me:***@host:1'"
    )


def test_a_user_without_a_name_is_left_out(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nameless() -> str:
        raise OSError("no user name in the password database")

    monkeypatch.setattr(getpass, "getuser", nameless)
    tags = environment_tags(repository)
    assert "mlflow.user" not in tags
    assert "runner.host" in tags


def test_packages_that_are_not_installed_are_left_out(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.tracking.source_control._PACKAGES", ("no-such-package", "numpy"))
    versions = {tag for tag in environment_tags(repository) if tag.startswith("runner.version.")}
    assert versions == {"runner.version.numpy"}
