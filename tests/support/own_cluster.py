"""Runs a program whose sessions soon say what they wait for: its only argument is its path."""

from __future__ import annotations

import runpy
import sys

from runner.session import waiting

if __name__ == "__main__":
    waiting.PATIENCE_S = 0.2
    runpy.run_path(sys.argv[1])
    print("ended", flush=True)
