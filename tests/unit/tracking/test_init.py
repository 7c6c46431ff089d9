from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runner.config.schema import MaskConfig, TrackingConfig
from runner.errors import ConfigError, TrackingError
from runner.tracking import LoggingStore, is_tracked, open_store
from runner.tracking.journal_store import JournalStore


@pytest.mark.parametrize("uri", [None, "none", "None"])
def test_no_uri_turns_tracking_off(uri: str | None) -> None:
    assert not is_tracked(TrackingConfig(uri=uri))
    assert isinstance(open_store(TrackingConfig(uri=uri), {}), LoggingStore)


@pytest.mark.parametrize(
    ("uri", "tensorboard"), [("http://host:1", False), (None, True), ("none", True)]
)
def test_a_uri_or_tensorboard_turns_it_on(
    uri: str | None, tensorboard: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = TrackingConfig(uri=uri, tensorboard=tensorboard)
    assert is_tracked(config)
    assert isinstance(open_store(config, {}), JournalStore)
    assert list(tmp_path.iterdir()) == []


def test_a_malformed_uri_is_refused_at_once() -> None:
    with pytest.raises(TrackingError, match="knows no scheme 'sqlit'"):
        open_store(TrackingConfig(uri="sqlit:///mlflow.db"), {})


def test_a_malformed_pattern_of_secrets_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="no regular expression"):
        open_store(TrackingConfig(mask=MaskConfig(values=["("])), {})


def test_a_run_is_opened_without_mlflow_and_tensorflow(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from runner.config.schema import TrackingConfig\n"
        "from runner.tracking import FollowerProcess, RunStatus, open_store\n"
        "config = TrackingConfig(uri='sqlite:///mlflow.db', close_seconds=0.0)\n"
        "store = open_store(config, {}, FollowerProcess())\n"
        "store.connect()\n"
        "tracker = store.open(Path('run'), 'digits', 'one', {})\n"
        "tracker.log_metrics({'loss': 1.0}, 1)\n"
        "tracker.close(RunStatus.FINISHED)\n"
        "heavy = {'mlflow', 'tensorflow', 'keras', 'sqlalchemy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, cwd=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
