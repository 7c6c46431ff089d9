"""The tutorials on data, models, warm starts and Estimators of one's own, followed by a reader."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest
import tensorflow as tf

from runner.commands.command_line import COMMANDS
from tests.support.command_line import in_process
from tests.support.packages import install

TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
FENCED = re.compile(r'```(\w+)(?: title="(.*?)")?\n(.*?)```', re.DOTALL)
# What a command of these pages ends with, where that is not 0.
CODES = {"train.step=100": 2, "~scaffolds.encoder.rename": 3}
# Left out: the same with other values, and a plan that the next command makes too.
SKIPPED = ("optimizer.learning_rate=3e-3", "seed=1", "mode=plan")


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_reader_gets_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    command = in_process(tmp_path, monkeypatch, capfd)
    for page in ("your-data-and-model", "warm-start"):
        text = (TUTORIALS / f"{page}.md").read_text()
        for language, name, block in FENCED.findall(text):
            if name:
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_text(block)
            if name == "make_files.py":
                runpy.run_path(str(tmp_path / name))
            if language != "sh":
                continue
            for line in block.splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["runner"] and words[-1] not in SKIPPED:
                    code = CODES.get(words[-1], 0)
                    if words[-1].startswith("+experiment="):
                        words.append("train.steps=20")
                    if words[1] not in COMMANDS:
                        words.append("tracking=none")
                    done = command(*words[1:])
                    assert done.code == code, done.err
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"quadrants", "three"}


@pytest.mark.soak
def test_a_reader_migrates_an_estimator(tmp_path: Path) -> None:
    programs, folder = install(tmp_path), tmp_path / "folder"
    path = f"{programs}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PIP_NO_INDEX": "1"}  # All packages are there.
    environment.pop("PYTHONPATH", None)
    folder.mkdir()

    def run(command: str) -> str:
        done = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    output = ""
    for language, name, block in FENCED.findall((TUTORIALS / "estimator.md").read_text()):
        if name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(block)
        elif language == "sh":
            output += "".join(map(run, block.splitlines()))
    where = run("python -c 'import runner; print(runner.__file__)'")
    assert where.startswith(str(tmp_path / "venv"))
    assert "4 of 4 model variables (100 % of their bytes) from 2 checkpoints" in output
    assert "best:    validation/accuracy 0.9" in output
    assert tf.train.load_variable(str(folder / "finetuned"), "global_step") == 100
