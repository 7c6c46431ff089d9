"""Maps, plans, warm-starts and lists where Python lacks what it lacks on Windows.

The libraries, which have other parts for Windows, are imported before.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import filelock  # noqa: F401
import hydra.utils  # noqa: F401
import keras
import numpy as np
import psutil  # noqa: F401
import scipy.optimize  # noqa: F401
import sklearn  # noqa: F401
import tensorflow as tf
from hydra.core.plugins import Plugins
from safetensors.numpy import save_file

_MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
_SIGNALS = ("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_FUNCTIONS = ("chown", "fchmod", "fork", "getpgid", "getuid", "killpg", "nice", "setsid", "uname")


def build() -> keras.Model:
    """Returns a model of one layer."""
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="d")])


def become_windows() -> None:
    """Takes from this process what Python on Windows does not have."""
    for name in _MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in _SIGNALS:
        delattr(signal, name)
    for name in _FUNCTIONS:
        delattr(os, name)


def main() -> None:
    """Ends without an error."""
    Plugins.instance()
    tf.config.list_physical_devices()
    become_windows()
    import runner
    from runner.commands.command_line import main as command_line

    with TemporaryDirectory() as folder:
        file = str(Path(folder) / "d.safetensors")
        save_file({"d/kernel": np.ones((3, 2), "f"), "d/bias": np.ones(2, "f")}, file)
        scaffolds: Any = {"d": {"checkpoint": file, "variables": {"include": ["*"]}}}
        model = build()
        assert not runner.plan(model, scaffolds).problems
        runner.warm_start(model, scaffolds)
        assert command_line(["inspect", file]) == 0
        assert command_line(["map", f"{Path(__file__).stem}.build", file]) == 0
    print(model(np.ones((1, 3))).numpy().tolist())


if __name__ == "__main__":
    main()
