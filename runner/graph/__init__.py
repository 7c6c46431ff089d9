"""From the configuration to a graph: data, model, loss, optimizer and metrics, and their contracts.

Sessions, files and hooks live elsewhere; a graph that leaves this room is complete but not final.
"""
