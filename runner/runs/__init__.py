"""A run on disk.

- `run_directory`: its files, the record of its status, and its owner
- `resumption`: how a run starts, which `claimed_run` decides: new, resumed or extended; and which
  run is nearest to a configuration
- `recorded_config`: the configuration of a run that is named by its folder
- `saved_checkpoints`: its checkpoints, saved so that a crash leaves a whole one; damaged ones are
  set aside in `damaged/` when it resumes
- `provenance`: its code, machine and packages, where its variables' values came from, and the runs
  that it started from; `lineage`: these, and theirs

It rests on `checkpoints` and `tracking`. Nothing here trains: later rooms decide what a run does.
"""
