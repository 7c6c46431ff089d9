"""Plans where every variable's value comes from, and restores it from there.

variables + checkpoints + rules -> plan -> report, or restore:

- `variables`: specs of variables, their classes of state, and which scaffolds claim them.
- `patterns`: patterns over names, with parts and arithmetic, and renames.
- `rules`: pattern over variables -> expression over tensors; `expressions`: their syntax.
- `steps`: the steps and functions of expressions by name; `named_conversions`: the steps of whole
  layers, `torch_layouts`: of PyTorch's; `target`: the variable that steps are built for.
- `conversions`, `resampling`, `vocabularies`: compute the steps; `combinations`: the functions.
- `matching`: which tensors a claimed variable takes; `tensor_fitting`: by which conversions;
  `codes`: keeps codes of quantized weights from float variables; `source_tensors`: the way from
  tensors to the variable's value, and back.
- `plan`: `make_plan` and `RestorationPlan`, the door for planning; `problems`: its problems.
- `inversion`: trained values as tensors of the checkpoint that they came from.
- `report`, `json_report`, `html_report`: the doors for showing a plan.
- `engine`: restores the values of a plan; `reading`: reads, converts and checks them.
- `restorer`: `Restorer`, the door for restoring in sessions; `session_assigner`: their assigner;
  `initialization`: the initializers that must run before.
- `sources`: opens the scaffolds' checkpoints.
- `model_variables`: the names of a model's variables; `weights_layout`: where Keras saves them;
  `places`: which layers of a file are the model's, by names and places; `optimizer_slots`: whose
  the numbered slots of a file are; `file_order`: in which orders its layers may have trained.
- `eager_plan`: `WarmStartPlan`, a plan as programs have it.
- `eager`: `plan`, `warm_start` and the callback `WarmStart`, the doors for programs without a run.
- `proving`: `prove`, the door for comparing a model with what the source of its weights computes;
  `reference`: the recording of the source; `feeding`: gives a model the recorded inputs;
  `source_modules`: the layers that hold a module's tensors; `local_comparison`: compares each one
  on recorded inputs; `exchanges`: which two have each other's tensors; `proof`: the comparison and
  its report; `findings`: why a layer differs.

Planning needs no session and reads no tensor values. The room rests on `checkpoints`, for formats,
and on `runs`, for provenance; `graph` and `session` rest on it.
"""
