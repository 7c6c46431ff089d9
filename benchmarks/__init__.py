"""The cost of the runner, compared with an alternative in the same process or the same minutes.

`make bench` runs all of them; `python -m benchmarks.NAME` runs one.
"""

import logging
import os

# Before TensorFlow is imported: notes and warnings would stand between the results, such as that
# a journal without a follower is not delivered.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
logging.disable(logging.WARNING)
