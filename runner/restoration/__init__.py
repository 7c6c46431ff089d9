"""Plans where every variable's value comes from, and restores it from there.

variables + checkpoints + rules -> plan -> report, or restore:

- `variables`: specs of variables, their classes of state, and which scaffolds claim them.
- `patterns`: globs, regular expressions and renames over names.
- `matching`: which tensors a claimed variable takes; `fitting`: by which conversions they fit.
- `conversions`: the steps from a tensor to a variable; `named_conversions`: the steps between the
  layouts of frameworks, by name.
- `plan`: `make_plan` and `RestorationPlan`, the door for planning; `problems`: its problems.
- `report`, `json_report`, `html_report`: the doors for showing a plan.
- `engine`: restores the values of a plan; `reading`: reads, converts and checks them.
- `restorer`: `Restorer`, the door for restoring in sessions; `session_backend`: their backend.
- `sources`: opens the scaffolds' checkpoints; `starting_scaffold`: the scaffold that
  `runner.inspect --as-scaffold` prints.
- `model_variables`: the names of a model's variables; `weights_layout`: where Keras saves them.
- `eager`: `plan`, `warm_start` and the callback `WarmStart`, the doors for programs without a run.

- `proving`: `prove`, the door for comparing a model with what the source of its weights computes:
  `reference`: what has been recorded of it; `feeding`: gives a model the recorded inputs;
  `source_modules`: finds the layers of the source's modules; `proof`: compares values; `findings`:
  says what is known of a layer that differs.

Planning needs no session and reads no tensor values. The room rests on `checkpoints`, for formats,
and on `runs`, for provenance; `graph` and `session` rest on it.
"""
