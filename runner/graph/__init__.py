"""From a configuration to a complete graph, before it is finalised.

- `experiment`: the contracts of data, models, losses and metrics; `BuiltGraph`, what comes out.
- `build`: `build_graph`, the door; `own_graph`: the same for a configuration that brings
  its own graph, described by a `GraphSpec` (`graph_spec`).
- `input_pipeline`: the training input, whose position is saved in checkpoints.
- `objective`: the loss, the metrics and the weights of examples; `measures`: losses and metrics
  that are functions; `keras_measures`: those that are Keras's.
- `training_step`: forward pass, gradients, update; `optimization`: optimizers and their schedules,
  clipping, accumulation, moving averages; `keras_optimizer`: those of Keras as TensorFlow's;
  `precision`: the new graph and the model in it, with seeds, 16 bits, XLA and threads.
- `variables`: their names, and what the planner and checkpoints know of them; `configured_hooks`:
  the hooks of the configuration, and what `${graph:NAME}` in their arguments stands for.
- `calls`: calls the experiment's own code, and names the part of it that an error comes from.
- `replica`: the seam at which a cluster places the parts of a graph.

It rests on `restoration`, whose ownership decides under which scaffold's settings a variable
trains. Nothing here runs the graph, restores a value or writes a file.
"""
