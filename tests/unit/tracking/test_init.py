from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runner.errors import TrackingError
from runner.tracking import LoggingStore, open_store
from runner.tracking.mlflow_tracker import MlflowStore


@pytest.mark.parametrize("uri", [None, "none", "None"])
def test_no_uri_turns_tracking_off(uri: str | None) -> None:
    assert isinstance(open_store(uri), LoggingStore)


def test_a_uri_names_an_mlflow_store(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/mlflow.db")
    assert isinstance(store, MlflowStore)
    assert list(tmp_path.iterdir()) == []


def test_a_malformed_uri_is_refused_at_once() -> None:
    with pytest.raises(TrackingError, match="knows no scheme 'sqlit'"):
        open_store("sqlit:///mlflow.db")


def test_importing_the_package_imports_neither_mlflow_nor_tensorflow() -> None:
    script = (
        "import sys, runner.tracking\n"
        "runner.tracking.open_store(None)\n"
        "heavy = {'mlflow', 'tensorflow', 'keras', 'sqlalchemy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
