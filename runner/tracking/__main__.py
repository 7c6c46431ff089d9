"""The process beside the runs of another: `python -m runner.tracking` delivers what they record."""

from __future__ import annotations

import logging
import os

from runner.tracking.delivery import print_warnings
from runner.tracking.follower_process import serve

if __name__ == "__main__":
    print_warnings()
    code = 0 if serve() else 1
    # A run waits for this, perhaps within a grace period, and taking MLflow apart takes seconds.
    logging.shutdown()
    os._exit(code)
