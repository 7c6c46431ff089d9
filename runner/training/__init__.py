"""One run, from its sources to its export.

- `run`: `Run`, everything that belongs to one run; `Coordinator` and `Surroundings`, what it meets
  outside itself; `watch`: `TrialWatch`, the seam at which a sweep watches it.
- `sources`: finds and pins each scaffold's checkpoint, first training the experiment that it comes
  from if there is no finished run of it; `plan_run`: the plan.
- `loop`: `train_run`, the session and the loop; `loop_hooks`: its hooks, in their order (the last
  ones stop it, also after a signal), and where their metrics go.
- `recording`: what is recorded of a run at its start and its end, and its last lines.
- `evaluation`, `export`: `mode=evaluate` and `mode=export` of a run's checkpoint.

`runner.run` calls these in turn. Plans and graphs are made in the rooms before this one; clusters
and sweeps plug in at the seams.
"""
