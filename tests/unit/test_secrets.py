"""No secret leaves a process in clear, by the whole command."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import tensorflow as tf

from runner.config.masked_output import hide
from runner.config.masking import mask_of_command
from tests.samples.experiment import Blobs
from tests.support.command_line import CONF, Command, in_process

PASSWORD = "s3c \"r''e\\t/7"
SECRETS = {
    "headers": "{X-Api-Key: s3cret-one, Cookie: s3cret-two}",
    "account_key": "'s3cretthree=='",
    "connection_string": "'AccountName=a;AccountKey=s3cretfour=='",
    "key": "s3cretfive",
    "url": "'https://h/x?sv=1&sig=s3cretsix'",
    "ftp": "'ftp://s3cretseven@h/x'",
    "pass": "'" + PASSWORD.replace("\\", "\\\\").replace("'", "\\'") + "'",
}


class Guarded(Blobs):
    """Data behind a login, which fails for `fails`."""

    def __init__(self, fails: bool = False, **login: Any) -> None:
        super().__init__()
        self.fails, self.login = fails, login

    def train(self) -> tf.data.Dataset:
        print("logs in by", self.login)
        print("Basic", base64.b64encode(f"me:{self.login['pass']}".encode()).decode())
        print("GET https://h/x?p=" + quote(self.login["pass"]), file=sys.stderr)
        if self.fails:
            raise ConnectionError(f"{self.login} is refused: {self.login['pass']}")
        return super().train()


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    overrides = [f"data._target_={Guarded.__module__}.Guarded", "~data.batch_size", "~data.seed"]
    overrides += [f"+data.{key}={value}" for key, value in SECRETS.items()]
    short = ["train.steps=1", "train.evaluate_every=end", "tracking.tensorboard=true"]
    arguments = (*CONF, "+experiment=tiny", *overrides, *short)
    return in_process(tmp_path, monkeypatch, capfd, *arguments)


@pytest.mark.usefixtures("forked_followers")
@pytest.mark.parametrize(("fails", "code"), [("false", 0), ("true", 1)])
def test_a_run_prints_and_records_no_secret(
    command: Command, tmp_path: Path, fails: str, code: int
) -> None:
    hide(mask_of_command([]))  # As a sweep in this process has done before.
    outcome = command(f"+data.fails={fails}")
    assert outcome.code == code
    assert "logs in by" in outcome.out
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    for text in (outcome.out.encode(), outcome.err.encode(), *written):
        assert b"s3c" not in text
        assert b"bWU6czNj" not in text  # "me:s3c" in Base64.
    recorded = list(tmp_path.glob("runs/tiny/001/config.yaml"))
    assert len(recorded) == (0 if code else 1)


def test_a_run_directory_with_a_secret_in_its_name_is_refused(
    command: Command, tmp_path: Path
) -> None:
    outcome = command("run_dir=runs/${data.key}")
    assert outcome.code == 2
    assert outcome.err.startswith("runner: run_dir is 'runs/***'\n  cause: it holds a secret")
    assert not list(tmp_path.iterdir())
