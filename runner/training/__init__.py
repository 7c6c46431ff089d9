"""One run, from its sources to its export.

- `experiment`: `Experiment`, what exists before there is a run directory, and `OpenedRun`
  afterwards; `Coordinator` connects them to the other tasks of a cluster.
- `context`: `RunContext`, what a command gives to a run besides its configuration; `TrialWatch`, by
  which a sweep watches a run.
- `run_sources`: `Sources` finds and pins each scaffold's checkpoint, first training the experiment
  that it comes from if there is no finished run of it; its `plan_run` plans with them.
- `loop`: `train_run`, the session and the loop; `loop_hooks`: its hooks, in their order (the last
  one ends it after a signal, or when its trial is pruned), and where their metrics go;
  `named_hooks`: the hooks of the configuration.
- `extension`: what `resume=extend` does not take from the run's checkpoint.
- `recording`: records a run at its start and its end, and prints its last lines; `figures`: draws
  what a run shows in MLflow.
- `plan_proof`: proves a plan before a run begins, and afterwards; `first_values`: derives the
  values that a run has started from again.
- `evaluate_run`, `prediction`, `export`: `mode=evaluate`, `predict` and `export`, of a run's
  checkpoint or of the values that training would start from; `prediction_files`: the files of
  predictions; `export_names`: exports under the names of a scaffold's checkpoint.

`runner.lifecycle` calls these in turn. Earlier rooms make plans and graphs; clusters and sweeps
extend `Coordinator` and `TrialWatch`.
"""
