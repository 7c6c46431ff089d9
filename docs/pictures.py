"""Redraws the pictures of the docs from real runs: `make pictures`, or some by name.

    python docs/pictures.py house plan mlflow progress learning_curves

Runs are kept in a folder for temporary files, so that a second call only takes what is missing.
Chromium, on the PATH as `chromium`, takes photographs of pages, and tmux those of a terminal.
"""

from __future__ import annotations

import ast
import io
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
WORK = Path(tempfile.gettempdir()) / "runner_pictures"
RUNNER = (sys.executable, "-m", "runner")
EXPERIMENT = "lstm_cnn"
# Each floor rests on those after it. What a room is for is the first line of its docstring.
FLOORS = (
    ("commands", ("__main__", "commands")),
    ("outside the core", ("api", "mapping", "sweeps", "cluster")),
    ("one run", ("lifecycle", "estimator", "training")),
    ("TensorFlow", ("hooks", "graph", "session")),
    ("warm start", ("proof", "restoration", "planning", "rules")),
    ("disk and stores", ("runs", "tracking", "checkpoints")),
    ("input", ("inputs", "config")),
    ("ground", ("system", "internals", "console", "errors")),
)


def house() -> None:
    """Draws the rooms of `runner/`, floor by floor."""
    width, left, top = 960, 130, 10.0
    boxes = []
    for name, every in FLOORS:
        rooms = [room for room in every if _source(room).is_file()]
        wide = (width - left - 8) / len(rooms)
        purposes = [_lines(_purpose(room), int(wide / 7.4)) for room in rooms]
        height = 36 + 15 * max(map(len, purposes))
        boxes.append(f'<text class="floor" x="8" y="{top + height / 2 + 5}">{name}</text>')
        for column, (room, purpose) in enumerate(zip(rooms, purposes, strict=True)):
            x = left + column * wide
            boxes.append(
                f'<rect x="{x}" y="{top}" width="{wide - 8}" height="{height}" rx="6"/>'
                f'<text class="room" x="{x + 10}" y="{top + 22}">{escape(room)}</text>'
            )
            for line, words in enumerate(purpose):
                y = top + 42 + line * 15
                boxes.append(f'<text class="purpose" x="{x + 10}" y="{y}">{escape(words)}</text>')
        top += height + 8
    style = (
        "text{font-family:system-ui,sans-serif}rect{fill:#d8ebe8;stroke:#00796b}"
        ".room{font:bold 14px ui-monospace,monospace;fill:#003d33}"
        ".purpose{font-size:12px;fill:#222}.floor{font-size:13px;fill:#808890}"
    )
    (PICTURES / "house.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}">\n'
        f"<title>The rooms of runner: each rests on those below</title><style>{style}</style>\n"
        + "\n".join(boxes)
        + "\n</svg>\n",
        encoding="utf-8",
    )


def plan() -> None:
    """Photographs the plan of the example's run."""
    with _page(760) as page:
        page.goto((_trained() / "plan.html").as_uri())
        page.screenshot(path=PICTURES / "plan.png")


def mlflow() -> None:
    """Photographs the metrics of the example's run in MLflow."""
    (position,) = _trained().glob("tracking/sqlite-*/position.json")
    ids = json.loads(position.read_text())
    shown = f"#/experiments/{ids['experiment_id']}/runs/{ids['run_id']}/model-metrics"
    with _server() as address, _page(760) as page:
        page.goto(f"{address}/{shown}?workflowType=machine_learning")
        page.get_by_label("Close").first.click()  # MLflow's assistant
        page.wait_for_selector(".js-plotly-plot .trace")
        page.wait_for_timeout(3000)
        page.screenshot(path=PICTURES / "mlflow.png")


def progress() -> None:
    """Takes what a terminal shows in the middle of a run."""
    name, command = "runner_pictures", "runner +experiment=digits_cnn"
    overrides = "train.steps=3000 train.evaluate_every=500 tracking=none resume=never"
    whole = f"env -u COLUMNS {sys.executable} -m {command} {overrides} 2>/dev/null"
    WORK.mkdir(exist_ok=True)
    tmux = ("tmux", "-L", name)
    subprocess.run(
        (*tmux, "new-session", "-d", "-s", name, "-x", "90", "-y", "12", "-c", WORK, whole),
        check=True,
    )
    try:
        text = ""
        while "step 1500  validation" not in text:
            time.sleep(0.2)
            text = subprocess.run(
                (*tmux, "capture-pane", "-e", "-p", "-t", name),
                check=True,
                capture_output=True,
                text=True,
            ).stdout
    finally:
        subprocess.run((*tmux, "kill-server"), check=False)
    console = Console(record=True, width=90, file=io.StringIO())
    console.print(Text.from_ansi(text.rstrip()))
    drawn = console.export_svg(title=f"$ {command}", theme=DIMMED_MONOKAI)
    # No font is loaded from elsewhere.
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    (PICTURES / "progress.svg").write_text(drawn.replace("Fira Code, monospace", "monospace"))


def learning_curves() -> None:
    """Trains the study of warm starts, twelve trials, and takes its figure."""
    study = WORK / "study"
    if not study.exists():
        study.mkdir(parents=True)
        command = (*RUNNER, "-m", f"+experiment={EXPERIMENT}", "+study=warm_start")
        subprocess.run(command, cwd=study, check=True)
    (figure,) = study.glob("runs/sweeps/*/figures/learning_curves.png")
    shutil.copyfile(figure, PICTURES / "warm_start_study.png")


def _source(room: str) -> Path:
    folder, module = ROOT / "runner" / room / "__init__.py", ROOT / "runner" / f"{room}.py"
    return folder if folder.is_file() else module


def _purpose(room: str) -> str:
    source = _source(room).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _lines(text: str, most: int) -> list[str]:
    lines = [""]
    for word in text.replace("`", "").split():
        longer = f"{lines[-1]} {word}".strip()
        if len(longer) <= most:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _trained() -> Path:
    """Trains the example, once, and returns its run directory."""
    folder = WORK / EXPERIMENT
    run = folder / "runs" / EXPERIMENT / "001"
    if not (run / "plan.html").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run((*RUNNER, f"+experiment={EXPERIMENT}"), cwd=folder, check=True)
    return run


@contextmanager
def _server() -> Iterator[str]:
    """Serves the runs by MLflow while its body runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = f"sqlite:///{WORK / EXPERIMENT / 'mlflow.db'}"
    command = (sys.executable, "-m", "mlflow", "ui", "--workers=1", f"--port={port}")
    server = subprocess.Popen((*command, "--backend-store-uri", store), cwd=WORK)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(address).close()
                break
            except OSError:
                time.sleep(1)
        yield address
    finally:
        server.terminate()
        server.wait()


@contextmanager
def _page(height: int) -> Iterator[Page]:
    """Opens a page of Chromium."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": 1280, "height": height})
        page.set_default_timeout(120_000)
        yield page
        browser.close()


MAKERS = {each.__name__: each for each in (house, plan, mlflow, progress, learning_curves)}


if __name__ == "__main__":
    for chosen in sys.argv[1:] or MAKERS:
        MAKERS[chosen]()
