"""Where a run's code, machine and packages came from, as tags."""

from __future__ import annotations

import getpass
import logging
import os
import platform
import re
import shlex
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

logger = logging.getLogger(__name__)

# MLflow's own names, spelt out so that importing this does not import MLflow.
COMMIT_TAG = "mlflow.source.git.commit"
BRANCH_TAG = "mlflow.source.git.branch"
DIRTY_TAG = "mlflow.source.git.dirty"
USER_TAG = "mlflow.user"
SOURCE_NAME_TAG = "mlflow.source.name"
SOURCE_TYPE_TAG = "mlflow.source.type"
COMMAND_TAG = "runner.command"
HOST_TAG = "runner.host"
PYTHON_TAG = "runner.python"
VERSION_TAG_PREFIX = "runner.version."

_PACKAGES = ("runner", "tensorflow", "keras", "numpy", "mlflow", "hydra-core", "omegaconf")
_GIT_SECONDS = 10.0
# In a URI such as http://user:password@host.
_PASSWORD = re.compile(r"(?<=:)[^\s/@:]+(?=@)")


def environment_tags(directory: Path) -> dict[str, str]:
    """Returns tags that say which code runs, where, and as whom.

    Git's commit, branch and `true` or `false` for changes to tracked files; the user, the
    host, the command with passwords in URIs masked, and the versions of Python and of the
    packages that results depend on.
    What cannot be found out is left out: without git, or outside a repository, the git tags.

    Args:
      directory: a directory of the code, anywhere in its repository.
    """
    tags = {
        SOURCE_NAME_TAG: _program(Path(sys.argv[0])),
        SOURCE_TYPE_TAG: "LOCAL",
        COMMAND_TAG: shlex.join(_PASSWORD.sub("***", each) for each in sys.orig_argv),
        HOST_TAG: socket.gethostname(),
        PYTHON_TAG: platform.python_version(),
        **git_tags(directory),
        **_user_tags(),
    }
    for package in _PACKAGES:
        try:
            tags[f"{VERSION_TAG_PREFIX}{package}"] = metadata.version(package)
        except metadata.PackageNotFoundError:
            logger.debug("The package %s is not installed.", package)
    return tags


def git_tags(directory: Path, git: str = "git") -> dict[str, str]:
    """Returns the commit, branch and dirty flag of the repository around `directory`.

    Untracked files do not count as changes. A detached head has no branch, a repository
    without commits no commit; no repository, or no `git`, gives no tags.

    Args:
      directory: a directory in the repository.
      git: the git program.
    """
    # Git hooks set GIT_DIR and the like, which would outweigh the directory.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = [git, "--no-optional-locks", "status", "--porcelain=v2", "--branch"]
    try:
        status = subprocess.run(
            [*command, "--untracked-files=no"],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("Git says nothing about %s: %s", directory, error)
        return {}
    tags = {DIRTY_TAG: "false"}
    for line in status.stdout.splitlines():
        if line.startswith("# branch.oid ") and not line.endswith("(initial)"):
            tags[COMMIT_TAG] = line.split()[-1]
        elif line.startswith("# branch.head ") and not line.endswith("(detached)"):
            tags[BRANCH_TAG] = line.split(maxsplit=2)[-1]
        elif not line.startswith("#"):
            tags[DIRTY_TAG] = "true"
    return tags


def _program(path: Path) -> str:
    return path.parent.name if path.name == "__main__.py" else path.name


def _user_tags() -> dict[str, str]:
    try:
        return {USER_TAG: getpass.getuser()}
    # Which one depends on the Python version: the user id has no name, as in many containers.
    except (KeyError, OSError, ImportError) as error:
        logger.debug("The user has no name: %s", error)
        return {}
