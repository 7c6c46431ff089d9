"""What the operating system gives: signals, lifelines, locks, atomic files, start-up imports.

Nothing here knows of runs, sweeps or TensorFlow graphs.
"""
