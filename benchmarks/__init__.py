"""The cost of the runner, compared with an alternative in the same process or the same minutes.

`make bench` runs them all; each also runs alone, as `python -m benchmarks.NAME`.
"""

import os

# Before TensorFlow is imported: its notes would stand between the results.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
