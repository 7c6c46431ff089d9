"""Notebooks from the pages of the docs: `python -m tests.notebooks` writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tutorials" / "notebook.md"
_CODE = re.compile(r"```python\n(.*?)\n```\n", re.DOTALL)


def notebook(page: str) -> dict[str, Any]:
    """Returns a page as a notebook: its prose as Markdown, its Python as code, without outputs."""
    cells = []
    for index, part in enumerate(_CODE.split(page)):
        kind = "code" if index % 2 else "markdown"
        lines = part.strip("\n").splitlines(keepends=True)
        if not lines:
            continue
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{index}", "metadata": {}}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        cells.append({**cell, "source": lines})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


if __name__ == "__main__":
    text = json.dumps(notebook(PAGE.read_text(encoding="utf-8")), indent=1, ensure_ascii=False)
    PAGE.with_suffix(".ipynb").write_text(f"{text}\n", encoding="utf-8")
