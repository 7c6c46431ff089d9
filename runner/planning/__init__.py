"""Plans where every variable's value comes from, and shows the plan; reads no tensor values.

variables + checkpoints + rules -> plan -> report:

- `variables`: specs of variables, their classes of state, and which scaffolds claim them.
- `sources`: opens the scaffolds' checkpoints.
- `matching`: which tensors a claimed variable takes; `tensor_fitting`: by which conversions;
  `codes`: keeps codes of quantized weights from float variables.
- `plan`: `make_plan` and `RestorationPlan`; `problems`: what stands in the way of a plan.
- `report`, `json_report`, `html_report`: show a plan.
- `model_variables`: the names of a model's variables, `optimizer_state` of its optimizers', in runs
  and in eager programs alike; `weights_layout`: where Keras saves a model's variables;
  `places`: which layers of a file are the model's, by names and places; `optimizer_slots`: whose
  the numbered slots of a file are; `file_order`: in which orders its layers may have trained.
- `comparison`: compares arrays with a reference; what a proof says. `runner.proof` makes proofs.

Doors: `open_sources`, `weights_layout.plan_located` and the three reports. The room rests on
`rules`, on `checkpoints`, for formats, and on `runs`, for provenance. `restoration` carries plans
out.
"""
