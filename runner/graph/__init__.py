"""From a configuration to a complete graph, before it is finalised.

- `experiment`: the contracts of data, models, losses and metrics; `BuiltGraph`, what comes out.
- `build`: `build_graph`, the door; `own_graph`: the same for a configuration with a graph of its
  own, which is a `graph_spec`.
- `input_pipeline`: the training input, whose position checkpoints hold, and what of a step they do
  not hold.
- `objective`: the loss, the metrics and the weights of examples; `measures`: those of functions,
  `keras_measures`: those of Keras.
- `training_step`: forward pass, gradients, update; `optimization`: optimizers and their schedules,
  clipping, accumulation, moving averages; `keras_optimizer`: those of Keras as TensorFlow's;
  `precision`: seeds, 16 bits, XLA, threads.
- `variables`: their names, and what the planner and checkpoints know of them; `configured_hooks`:
  the hooks of the configuration, and what `${graph:NAME}` in their arguments stands for.
- `calls`: calls of an experiment's own code, which name the one that raised.
- `replica`: the seam at which a cluster places the parts of a graph.

It rests on `restoration`, whose ownership decides under which scaffold's settings a variable
trains. Nothing here opens a session, reads a checkpoint or writes a file.
"""
