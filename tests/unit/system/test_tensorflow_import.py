from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

IMPORT = """
import os, sys
from runner.system.imports import import_tensorflow
import_tensorflow()
import_tensorflow()
print("tensorflow" in sys.modules, "TF_CPP_MIN_LOG_LEVEL" in os.environ)
"""


def test_it_is_imported_without_a_word_and_leaves_no_setting(tmp_path: Path) -> None:
    # Importing the real one takes seconds, and its notes depend on the machine.
    (tmp_path / "tensorflow.py").write_text("import os; os.write(2, b'a note')")
    done = subprocess.run(
        [sys.executable, "-c", IMPORT],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("True False\n", "")
