"""From a configuration to a complete graph, before it is finalised.

- `build`: `build_graph`, the door, and the table of makers; `built_graph`: the contract that every
  maker fulfils: how a step is taken and a split evaluated, hooks, scaffold, saver, signatures.
- `keras_graph`: the maker for `data`, `model` and `loss`; `experiment`: what these must offer;
  `splits`: the splits of the data as batches; `keras_steps`: calls a `train_step` or `test_step`
  that the model overrides; `keras_serving`: its forward pass alone; `eager_model`: the model
  outside any graph, with its initial values or a checkpoint's.
- `given_model`: what tells a model that is handed over from others.
- `user_graph`: the maker for a `graph` of the user, which a `GraphSpec` (`graph_spec`) describes.
- `evaluation`: evaluates a split, in the training session or in another graph and session.
- `serving`: the signature of an exported model, an example of its input, and its predictions.
- `input_pipeline`: the training input, whose position is saved in checkpoints.
- `objective`: the loss, the metrics and the weights of examples; `measures`: losses and metrics
  that are functions; `keras_measures`: those that are Keras's.
- `epochs`: the length of an epoch, and the metrics over one; `eager_twin`: the eager
  model with the values of a session, for callbacks.
- `training_step`: forward pass, gradients, update; `optimization`: optimizers and their schedules,
  clipping, accumulation, moving averages; `keras_optimizer`: Keras's as TensorFlow's;
  `precision`: the new graph and the model in it, with seeds, 16 bits, XLA and threads.
- `variables`: their names, specs and savers; `configured_hooks`: the hooks of the configuration,
  and the values of `${graph:NAME}` in their arguments.
- `devices`: the devices of this machine that train; `parallel_call`: calls a model on several of
  them; `batch_norm`: batch-norm statistics of all of them, and of frozen scaffolds.
- `calls`: calls user code, and names the part of it that an error comes from.
- `replica`: the seam at which a cluster places the parts of a graph.

It rests on `restoration`, whose ownership decides under which scaffold's settings a variable
trains, and on `session`, in which a separate evaluation runs. Training sessions, and what is
restored in them, are not its business.
"""
