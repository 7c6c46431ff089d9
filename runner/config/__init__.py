"""The configuration: its keys, their rules, and how Hydra composes it.

- `schema`, `scaffold_schema` and `training_schema`: every key, with its type and default;
  `choices`: enums for its values; `value_rules`: their other conditions;
  `keys`: the paths and types of keys, and the names of nested values; `reference_page`: the
  keys with their comments, as a page of the docs and in `--help`.
- `composition`: composes sources and trials (Hydra composes a command's own configuration), and
  reports Hydra's errors as problems; `hydra_messages`: those that it has only as messages;
  `key_problems`: problems of single keys; `groups`: the groups of options, and the problem of an
  option out of place; `spelling`: values as overrides and YAML; `command`: the command that started
  this process, and commands to copy into a shell.
- `validation`: from a composed configuration to a typed `RunConfig`, or all of its problems;
  `scaffold_reading` does so for scaffolds; `objective`: the metric that selects the best
  checkpoint.
- `conflicts`: the table of settings that cannot be combined, and its page; `conditions`: the form
  of its rows.
- `cluster`: the cluster that a configuration and `TF_CONFIG` describe; `cluster_spec`: its tasks
  and addresses.
- `instantiation`: `_target_` entries, and their references to the graph.
- `fingerprint`: the identity of a run; `masking`: secrets; `masked_output`: what a
  process prints, without them; `schedule`: how often something is due;
  `epochs`: where epochs begin and end.
- `fit_experiment`: the experiment of a call of `runner.fit`.

Doors: `validation.validate`, `cluster.resolve_cluster`, `instantiation.build_target`. Nothing here
builds a graph, opens a checkpoint or touches a run directory: TensorFlow is not imported.
"""
