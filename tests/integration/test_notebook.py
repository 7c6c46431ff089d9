"""The tutorial for notebooks, executed in a Jupyter kernel, and its stop button."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.notebooks import PAGE, notebook
from tests.support.forked import Forked, Forks
from tests.support.runs import wait_for

pytest.importorskip("ipykernel", reason="notebooks need Python 3.11")
jupyter = pytest.importorskip("jupyter_client")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
SECONDS = 200.0


def test_the_notebook_is_the_page() -> None:
    file = PAGE.with_suffix(".ipynb")
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written == notebook(PAGE.read_text(encoding="utf-8")), "python -m tests.notebooks"


class Kernel:
    """A kernel in a folder; `run` returns what a cell shows."""

    def __init__(self, folder: Path) -> None:
        self.manager = jupyter.KernelManager(kernel_name="")
        self.manager._kernel_spec = _this_python()
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)

    def run(self, code: str, *, stop_at: str = "") -> tuple[str, str]:
        """Returns text and HTML; presses the stop button once where the text has `stop_at`."""
        self.client.execute(code)
        text, html, deadline = "", "", time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            message = self.client.get_iopub_msg(timeout=SECONDS)
            content: dict[str, Any] = message["content"]
            kind = message["msg_type"]
            if kind == "stream":
                text += content["text"]
            elif kind == "error":
                text += f"{content['ename']}: {content['evalue']}"
            elif "data" in content:
                text += content["data"].get("text/plain", "")
                html += content["data"].get("text/html", "")
            if stop_at and stop_at in text:
                stop_at = ""
                self.manager.interrupt_kernel()
            if kind == "status" and content["execution_state"] == "idle":
                return text, html
        raise TimeoutError(text)


def _this_python() -> Any:
    specification = pytest.importorskip("jupyter_client.kernelspec").KernelSpec
    return specification(
        argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    )


@pytest.fixture
def kernel(tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """A kernel that is a fork: its interpreter would import for seconds."""

    def launch(command: list[str], *, cwd: str, env: dict[str, str], **_: Any) -> Forked:
        process = forks.start(command, cwd=Path(cwd), env=env, start_new_session=True)
        # The manager takes the process group, which the stop button signals, to be there by now.
        wait_for(lambda: os.getpgid(process.pid) == process.pid)
        return process

    monkeypatch.setattr("jupyter_client.provisioning.local_provisioner.launch_kernel", launch)
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)


LONG = """
import keras, numpy as np, runner
def line():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="line")], name="line")
    model.compile("sgd", "mse")
    return model
x = np.ones((8, 2), "float32")
settings = dict(name="line", batch_size=1, validation_data=(x, x[:, :1]))
off = {"tracking.uri": None}
"""


def test_the_stop_button_saves_and_ends_the_run_and_the_kernel_lives_on(kernel: Kernel) -> None:
    call = "result = runner.fit(line, x, x[:, :1], **settings, epochs=100000, overrides=off)"
    assert kernel.run(LONG) == ("", "")
    text, html = kernel.run(call, stop_at="validation")
    assert "line: runs in runs/line/001" in text
    assert "InterruptedRunError: ended by SIGINT" in text
    assert "training" in html
    assert "━" in html
    assert "></pre>" not in html  # Nothing is shown that is empty.
    text, _ = kernel.run(call, stop_at="validation")
    assert "line: resumes in runs/line/001" in text
    assert "InterruptedRunError" in text
    text, html = kernel.run("run = runner.open_run('runs/line/001'); run")
    assert "KILLED" in html
    text, html = kernel.run("runner.fit(line, x, x[:, :1], overrides={'mode': 'plan', **off}).plan")
    assert "<pre" in html
    assert "line/kernel" in html


@pytest.mark.soak
def test_the_tutorial_runs_from_its_first_cell_to_its_last(kernel: Kernel) -> None:
    shown = []
    for cell in notebook(PAGE.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            text, html = kernel.run("".join(cell["source"]))
            assert "Error: " not in text, text
            shown.append(text + html)
    assert "validation/accuracy" in shown[1]
    assert "GlorotUniform" in shown[4]
    assert "2 of 4 model variables" in shown[4]
    assert "nothing matches" in shown[5] or "boddy" in shown[5]
    assert "in the script itself" in shown[-1]
