"""Sweeps: trials that are runs, launched by Hydra and compared at the end.

Hydra finds the sweepers through the plugins in `hydra_plugins/runner_sweepers`, which delegate to
those here. A run does not know this room: it meets its sweep as a
`runner.training.context.TrialWatch`.

A sweep in the order of its life:
  sweeper          checks, opens, runs and reports a sweep
  grid_sweeper     a sweep over every combination
  optuna_sweeper   a search
  points           the overrides of trials, composed and checked before they start: all of a
                   grid, each batch of a search
  sweep_directory  the files: what identifies the sweep, and one record for each attempt at a trial
  parent_run       the run in MLflow whose children the trials are
  launchers        Hydra's launchers, as far as a sweep treats them differently
  device_sets      GPUs of trials that run side by side
  execution        launches attempts, and retries failures
  job              one attempt, in whatever process the launcher has chosen; its `Trial` is the
                   sweep as the run in that process sees it
  objectives       rank trials
  bands            learning curves of trials that repeat each other
  results          tables, files and tags at the end
  study_figures    drawn by Matplotlib and Optuna
A search also has:
  search_space     the distributions that trials are drawn from
  study            Optuna's study: draws trials, decides which are pruned, and adds the
                   trials of other processes
  search           the loop that asks for trials, runs and records them

Doors: `job.job_of` and `job.run_attempt` for the start of a run; `grid_sweeper` and
`optuna_sweeper` for the plugins. Training, tracking formats and Hydra's errors are not here.
"""
