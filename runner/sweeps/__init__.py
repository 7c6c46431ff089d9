"""Sweeps: trials that are runs, launched by Hydra and compared at the end.

The sweepers themselves are Hydra plugins, `hydra_plugins/runner_sweepers/grid.py` and `optuna.py`;
what they have in common is here. Nothing in the core knows this room: a run meets its sweep as a
`runner.training.watch.TrialWatch`.

A sweep in the order of its life:
  sweeper          checks, opens, runs and reports a sweep; the sweepers are its subclasses
  points           the trials to run: overrides, composed and checked before the first one starts
  sweep_directory  the files: what identifies the sweep, and one record for each attempt at a trial
  parent_run       the run in MLflow whose children the trials are
  execution        launches attempts, retries failures; what is known of Hydra's launchers
  job              one attempt, in whatever process the launcher has chosen; its `Trial` is what
                   the run in that process knows of its sweep
  objectives       what decides which trial is better: objectives and constraints
  results          tables, learning curves and tags at the end
  figures          drawn by Matplotlib and Optuna
A search also has:
  search_space     the distributions that trials are drawn from
  study            Optuna's study: draws trials, decides which are pruned, tracks others'
  search           the loop that asks for trials, runs and records them

Doors: `job.job_of`, `job.carry_out` and `job.Trial` for the command line, and
`sweeper.RunnerSweeper` for the plugins. Training, tracking formats and Hydra's errors are not here.
"""
