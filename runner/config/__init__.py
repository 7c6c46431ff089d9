"""What a user writes: the keys of a configuration, their rules, and how Hydra composes them.

- `schema`: every key, with its type, default and bounds; `choices`: what a key accepts.
- `composition`: composing sources and trials (Hydra composes the command itself, in
  `runner.__main__`), finding every mistake in a command, and spelling values for overrides and
  YAML; `hydra_errors` words the mistakes.
- `validation`: from a composed configuration to a typed `RunConfig`, or all of its problems.
- `cluster`: the cluster that a configuration and `TF_CONFIG` describe; `cluster_spec`: its tasks
  and addresses.
- `instantiation`: `_target_` entries, and their references to the graph.
- `fingerprint`: the identity of a run; `masking`: secrets; `schedule`: how often something is due.

Doors: `validation.validate`, `cluster.resolve`, `instantiation.build_target`. Nothing here builds a
graph, opens a checkpoint or touches a run directory: TensorFlow is not imported.
"""
