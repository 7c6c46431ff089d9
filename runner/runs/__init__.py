"""A run on disk: its directory and record, its owner, its saved checkpoints, where it came from.

Nothing here trains: rooms above decide what a run does.
"""
