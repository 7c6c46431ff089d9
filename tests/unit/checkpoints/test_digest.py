from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from runner.checkpoints import digest


def test_a_files_digest_is_its_sha256(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    assert digest.of_file(str(path)) == f"sha256:{hashlib.sha256(b'abc').hexdigest()}"


def test_a_changed_file_has_another_digest(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    before = digest.of_file(str(path))
    path.write_bytes(b"abd")
    os.utime(path, ns=(1, 1))
    assert digest.of_file(str(path)) != before


def test_the_order_of_parts_counts() -> None:
    assert digest.of_parts(["a", "b"]) != digest.of_parts(["b", "a"])


def test_a_missing_file_has_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        digest.of_file(str(tmp_path / "nothing"))
