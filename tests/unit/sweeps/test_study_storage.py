from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import ConfigError
from runner.sweeps.study_storage import open_storage


def test_a_storage_may_be_any_url_or_object(tmp_path: Path) -> None:
    storage = open_storage(tmp_path, f"sqlite:///{tmp_path}/other.db")
    assert (tmp_path / "other.db").exists()
    node = {
        "_target_": "optuna.storages.JournalStorage",
        "log_storage": {
            "_target_": "optuna.storages.journal.JournalFileBackend",
            "file_path": str(tmp_path / "journal"),
        },
    }
    assert type(open_storage(tmp_path, node)) is not type(storage)


@pytest.mark.parametrize("url", ["nosuch://host/db", "nonsense"])
def test_a_storage_that_cannot_be_opened(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"hydra\.sweeper\.storage cannot be opened"):
        open_storage(tmp_path, url)
