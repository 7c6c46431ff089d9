"""Warm-starts a model and lists its checkpoint; `make test-versions` runs it with the core alone.

Arguments: packages to refuse, for environments that have them. The script lies by itself: nothing
of the tests is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


class Refuse:
    """Finds none of the packages that the command line names."""

    def find_spec(self, name: str, *_: Any) -> None:
        """Raises the error of a package that is not installed."""
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main() -> None:
    """Prints what the model computes, and the names of the packages for runs that were imported."""
    sys.meta_path.insert(0, Refuse())
    import keras
    import numpy as np
    from safetensors.numpy import save_file

    import runner
    from runner.commands.command_line import main as command_line

    with TemporaryDirectory() as folder:
        file = str(Path(folder) / "d.safetensors")
        save_file({"d/kernel": np.ones((3, 2), "f"), "d/bias": np.ones(2, "f")}, file)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="d")])
        scaffolds: Any = {"d": {"checkpoint": file, "variables": {"include": ["*"]}}}
        assert not runner.plan(model, scaffolds).problems
        runner.warm_start(model, scaffolds)
        assert [*runner.open_checkpoint(file).tensors] == ["d/bias", "d/kernel"]
        assert command_line(["inspect", file]) == 0
    print(model(np.ones((1, 3))).numpy().tolist(), {"mlflow", "hydra", "optuna"} & {*sys.modules})


if __name__ == "__main__":
    main()
