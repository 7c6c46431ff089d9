"""The process beside the runs of another: `python -m runner.tracking` delivers what they record.

Its arguments are modules to import before their run directories are known.
"""

from __future__ import annotations

import logging
import os
import sys

from runner.tracking.delivery import print_warnings
from runner.tracking.follower_process import serve

if __name__ == "__main__":
    print_warnings()
    code = 0 if serve(*sys.argv[1:]) else 1
    # A run waits for this, perhaps within a grace period, and taking MLflow apart takes seconds.
    logging.shutdown()
    os._exit(code)
