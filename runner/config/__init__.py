"""What a user writes: the schema of the configuration, its checks, and how it is composed.

Nothing here builds a graph, opens a checkpoint or touches a run directory: TensorFlow is not
imported.
"""
