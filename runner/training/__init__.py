"""One run: its sources, its loop and hooks, what is recorded of it, evaluation and export.

What a graph is and how a session restores it is decided in the rooms below.
"""
