"""Makes the pictures of the docs anew, from real runs: `make pictures`, or some by name.

    python docs/pictures.py house plan mlflow terminal learning_curves

Runs are kept in a folder for temporary files, so that a second call only takes what is missing.
Pages are photographed by a headless Chromium, which is on the PATH as `chromium`.
"""

from __future__ import annotations

import ast
import json
import os
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

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
WORK = Path(tempfile.gettempdir()) / "runner_pictures"
RUNNER = (sys.executable, "-m", "runner")
EXPERIMENT = "lstm_cnn"
# Each floor rests on those after it. What a room is for is the first line of its docstring.
FLOORS = (
    ("commands", ("__main__", "inspect", "lineage", "sync")),
    ("outside the core", ("sweeps", "cluster")),
    ("one run", ("run", "estimator", "training")),
    ("TensorFlow", ("hooks", "session", "graph", "restoration")),
    ("disk and stores", ("runs", "tracking", "checkpoints")),
    ("input", ("inputs", "config")),
    ("ground", ("system", "tensorflow_internals", "console", "errors")),
)


def house() -> None:
    """Draws the rooms of `runner/`, floor by floor."""
    width, height, left = 960, 112, 130
    boxes = []
    for row, (name, rooms) in enumerate(FLOORS):
        top = 10 + row * (height + 8)
        boxes.append(f'<text class="floor" x="8" y="{top + height / 2 + 5}">{name}</text>')
        wide = (width - left - 8) / len(rooms)
        for column, room in enumerate(rooms):
            x = left + column * wide
            boxes.append(
                f'<rect x="{x}" y="{top}" width="{wide - 8}" height="{height}" rx="6"/>'
                f'<text class="room" x="{x + 10}" y="{top + 22}">{escape(room)}</text>'
            )
            for line, words in enumerate(_lines(_purpose(room), int(wide / 7.4))):
                y = top + 42 + line * 15
                boxes.append(f'<text class="purpose" x="{x + 10}" y="{y}">{escape(words)}</text>')
    total = 10 + len(FLOORS) * (height + 8)
    style = (
        "text{font-family:system-ui,sans-serif}rect{fill:#d8ebe8;stroke:#00796b}"
        ".room{font:bold 14px ui-monospace,monospace;fill:#003d33}"
        ".purpose{font-size:12px;fill:#222}.floor{font-size:13px;fill:#808890}"
    )
    (PICTURES / "house.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}">\n'
        f"<title>The rooms of runner: each rests on those below</title><style>{style}</style>\n"
        + "\n".join(boxes)
        + "\n</svg>\n",
        encoding="utf-8",
    )


def plan() -> None:
    """Photographs the plan of the example's run."""
    _photograph((_trained() / "plan.html").as_uri(), "plan.png", height=760)


def mlflow() -> None:
    """Photographs the example's run in MLflow."""
    (position,) = _trained().glob("tracking/sqlite-*/position.json")
    ids = json.loads(position.read_text())
    with _server() as address:
        page = f"{address}/#/experiments/{ids['experiment_id']}/runs/{ids['run_id']}"
        _photograph(page, "mlflow.png", height=900, wait=20000)


def terminal() -> None:
    """Draws what the example prints, as a terminal shows it."""
    path = _trained().parents[2] / "output.txt"
    console = Console(record=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115
    shown = [line for line in path.read_text().splitlines() if not line.startswith("I0000")]
    console.print(Text.from_ansi("\n".join(shown)))
    console.save_svg(str(PICTURES / "terminal.svg"), title=f"runner +experiment={EXPERIMENT}")


def learning_curves() -> None:
    """Trains the study of warm starts, twelve trials, and takes its figure."""
    study = WORK / "study"
    if not study.exists():
        study.mkdir(parents=True)
        command = (*RUNNER, "-m", f"+experiment={EXPERIMENT}", "+study=warm_start")
        subprocess.run(command, cwd=study, check=True)
    (figure,) = study.glob("runs/sweeps/*/figures/learning_curves.png")
    shutil.copyfile(figure, PICTURES / "warm_start_study.png")


def _purpose(room: str) -> str:
    folder, module = ROOT / "runner" / room / "__init__.py", ROOT / "runner" / f"{room}.py"
    source = (folder if folder.is_file() else module).read_text(encoding="utf-8")
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
        with (folder / "output.txt").open("w") as output:
            command = (*RUNNER, f"+experiment={EXPERIMENT}")
            subprocess.run(command, cwd=folder, check=True, stdout=output)
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


def _photograph(page: str, name: str, height: int, wait: int = 2000) -> None:
    subprocess.run(
        (
            *("chromium", "--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu"),
            f"--window-size=1280,{height}",
            f"--virtual-time-budget={wait}",
            f"--screenshot={PICTURES / name}",
            page,
        ),
        check=True,
        capture_output=True,
    )


MAKERS = {each.__name__: each for each in (house, plan, mlflow, terminal, learning_curves)}


if __name__ == "__main__":
    for chosen in sys.argv[1:] or MAKERS:
        MAKERS[chosen]()
