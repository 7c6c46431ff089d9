"""From a configuration to a complete graph, before it is finalised.

- `build`: `build_graph`, the door, and the table of makers; `built_graph`: the contract that every
  maker fulfils: how a step is taken and a split evaluated, hooks, scaffold, saver, signatures.
- `program`: a Keras model and its data, built eagerly as for `fit`; `contracts`: what data must
  offer; `splits`: their batches, epochs and class weights; `compiling`: compiles the model;
  `building_optimizers`: builds its optimizer; `given_model`: a model that `runner.fit` is given;
  `plain_config`: what both and records know of Keras objects.
- `keras_steps`: traces the model's steps; `run_optimizer`: what a run adds to an optimizer before;
  `step_sums`: sums over replicas; `batch_norm`: statistics of the replicas' whole batch, and of
  frozen scaffolds.
- `traces`: traced functions, and their counterparts in a session's graph, with what they take from
  layers (`captured`); `program_in_session`: the program in the session's graph; `keras_graph`: the
  maker for `model`, which imports them; `step_errors`: their errors, by the user's lines.
- `model_values`: the session's values in the model, for callbacks; `stored_values`: the
  model's values, in a file during the session; `trained_model`: the model with a checkpoint's
  values; `keras_serving`: what it predicts and serves.
- `user_graph`: the maker for a `graph` of the user, which a `GraphSpec` (`graph_spec`) describes;
  `new_graph`: the graph that it is built in.
- `evaluation`: evaluates a split, in the training session or in another graph and session.
- `serving`: the signature of an exported graph, and its predictions.
- `input_pipeline`: the training input, whose position is saved in checkpoints.
- `averages`: moving averages in the place of weights.
- `session_variables`: their names, specs and savers; `hook_entries`: the hooks of the
  configuration, and the values of `${graph:NAME}` in their arguments.
- `replica`: the tasks and the replicas of a step that divide its batches, on the `devices` of each
  task.

It rests on `planning`, whose ownership decides under which scaffold's settings a variable
trains, and on `session`, in which a separate evaluation runs. Training sessions, and what is
restored in them, are not its business.
"""
